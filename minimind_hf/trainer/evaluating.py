# SPDX-License-Identifier: Apache-2.0
"""Evaluation on held-out prompts. Each prompt counts once, whatever the batch size and the number of processes.

Rollouts and rewards are made batch by batch. The metrics are computed at the end, as for one training rollout:
statistics over a batch (whitening, stds, the denominator of the loss) cover all prompts. A process with fewer prompts
than the others adds stand-ins, because gathering weights, forward passes and exchanges need all processes. Stand-ins
get no rewards and count in no metric.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from .experience.experience import Experience, joined
from .experience.prompts import make_eval_prompts, named_prompts
from .experience.sampler import evaluation_batches
from .experience.scoring import check_reward_columns
from .metrics import Metrics
from .steps import FourSteps

_EVALUATION = 2**32 - 1  # takes the place of the rollout's number in the seeds of training


class EvaluatingTrainer(FourSteps):
    """`evaluate` and `predict`, using the steps of training."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        if isinstance(eval_dataset, str):
            eval_dataset = named_prompts(self.eval_dataset, eval_dataset)
        prompts = make_eval_prompts(eval_dataset, self.processing_class, self.args, self.agent) or self.eval_dataset
        if prompts is None:
            raise ValueError(
                "eval_dataset is None, so there is nothing to evaluate on. Pass one to the trainer or to evaluate()."
            )
        check_reward_columns(self.scorer, prompts)
        if prompts is not self.eval_dataset:  # which was checked when the trainer was made
            self._rollouts.check_prompts(eval_dataset=prompts)
        self._eval_prompts = prompts
        size = max(1, self.args.per_device_eval_batch_size // self._num_generations_eval)
        batches = evaluation_batches(len(prompts), size, self.args.process_index, self.args.world_size)
        return DataLoader(batches, batch_size=None, collate_fn=list)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """The data loader of `predict`, which computes the same metrics as `evaluate`."""
        return self.get_eval_dataloader(test_dataset)

    @property
    def _num_generations_eval(self) -> int:
        return self.args.num_generations_eval or self.args.num_generations

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        self._eval_metrics = Metrics()
        self._evaluated: list[Experience] = []
        self._rollouts.begin_evaluation()
        with self.metrics.clock_stopped():
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            self._rollouts.rest()
            measured = self._measure_evaluated()
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        return output._replace(num_samples=len(self._eval_prompts))

    def prediction_step(
        self,
        model: nn.Module,
        inputs: list[int | None],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, None, None]:
        """Makes rollouts and rewards for a batch of prompts; all evaluations of a run use the same seeds."""
        experience = Experience(
            [self._eval_prompts[number or 0] for number in inputs],
            self._num_generations_eval,
            self.sampling_seed(_EVALUATION - len(self._evaluated)),
            self.state.global_step,
            num_stand_ins=inputs.count(None),
            metrics=self._eval_metrics,
        )
        with torch.no_grad():
            self.rollout(experience)
            self.score(experience)
        self._evaluated.append(experience)
        return None, None, None

    @torch.no_grad()
    def _measure_evaluated(self) -> dict[str, float]:
        """Computes the metrics over all rollouts, as if they belonged to one optimizer step."""
        metrics, experience = self._eval_metrics, joined(self._evaluated)
        self._evaluated = []
        self.add_advantages(experience)
        self.measure(experience)
        micro_batches = self.micro_batches(experience)
        self.current_gradient_accumulation_steps = len(micro_batches)  # the Trainer resets it before each step
        denominator = self.accelerator.reduce(self.loss_denominator(micro_batches), reduction="sum")
        for part in [part for batch in micro_batches for part in self.parts(batch)]:
            metrics.add_total("loss", self.loss(self.model_wrapped, part, denominator, metrics))
        return metrics.flush(self.accelerator, step=1)
