# SPDX-License-Identifier: Apache-2.0
"""Evaluation: completions of held-out prompts, each counted once, whatever the batches and the number of processes.

Prompts are rolled out and scored batch by batch. What they are worth is measured when all are there, as one rollout
of training would be: statistics over a batch (whitening, stds, the denominator of the loss) are over all prompts. A
process that has fewer prompts than the others draws stand-ins, since gathering weights, passes and exchanges are the
work of all; they are not scored, and no number holds them.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from ..data import PromptDataset
from ..rewards import RewardScorer
from .checkpoints.saving import SavingTrainer
from .experience.experience import Experience, joined
from .experience.inputs import make_prompts, named_prompts
from .experience.micro_batch import MicroBatch
from .experience.rollouts import Rollouts
from .experience.sampler import evaluation_batches
from .experience.scoring import check_reward_columns
from .metrics import Metrics

_EVALUATION = 2**32 - 1  # stands where a rollout's number stands in the seeds of training


class EvaluatingTrainer(SavingTrainer):
    """`evaluate` and `predict` by what training does with a rollout."""

    _scorer: RewardScorer
    _rollouts: Rollouts
    _metrics: Metrics
    _eval_prompts: PromptDataset

    @abstractmethod
    def _seed(self, number: int) -> int:
        """The sampling seed of a rollout in this process."""

    @abstractmethod
    def _sample(
        self, prompts: list[dict], num_generations: int, seed: int, metrics: Metrics, num_stand_ins: int = 0
    ) -> Experience:
        """Rolls out the prompts of this process and scores all but those at the end that are stand-ins."""

    @abstractmethod
    def _judge(self, experience: Experience, metrics: Metrics) -> None:
        """Fills in the advantages, and measures."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        if isinstance(eval_dataset, str):
            eval_dataset = named_prompts(self.eval_dataset, eval_dataset)
        prompts = make_prompts(eval_dataset, self.processing_class, self.args) or self.eval_dataset
        if prompts is None:
            raise ValueError("There is no eval_dataset to evaluate on. Pass one to the trainer or to evaluate().")
        check_reward_columns(self._scorer, prompts)
        self._eval_prompts = prompts
        size = max(1, self.args.per_device_eval_batch_size // self._num_generations_eval)
        batches = evaluation_batches(len(prompts), size, self.args.process_index, self.args.world_size)
        return DataLoader(batches, batch_size=None, collate_fn=list)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Of `predict`, which measures on prompts as `evaluate` does."""
        return self.get_eval_dataloader(test_dataset)

    @property
    def _num_generations_eval(self) -> int:
        return self.args.num_generations_eval or self.args.num_generations

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        self._eval_metrics = Metrics()
        self._evaluated: list[Experience] = []
        self._rollouts.begin_evaluation()
        with self._metrics.clock_stopped():
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
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
        """Rolls out and scores a batch of evaluation prompts; equal seeds make evaluations of a run comparable."""
        seed = self._seed(_EVALUATION - len(self._evaluated))
        prompts = [self._eval_prompts[number or 0] for number in inputs]
        with torch.no_grad():
            experience = self._sample(
                prompts, self._num_generations_eval, seed, self._eval_metrics, num_stand_ins=inputs.count(None)
            )
        self._evaluated.append(experience)
        return None, None, None

    @torch.no_grad()
    def _measure_evaluated(self) -> dict[str, float]:
        """Takes all that was rolled out for one optimizer step's worth of completions, and returns its numbers."""
        metrics, experience = self._eval_metrics, joined(self._evaluated)
        self._evaluated = []
        self._judge(experience, metrics)
        micro_batches = self._micro_batches(experience, metrics)
        self.current_gradient_accumulation_steps = len(micro_batches)  # the Trainer sets it anew before each step
        denominator = self.accelerator.reduce(self._loss_denominator(micro_batches), reduction="sum")
        for part in [part for batch in micro_batches for part in self._parts(batch)]:
            metrics.add_total("loss", self._loss(self.model_wrapped, part, denominator, metrics))
        return metrics.flush(self.accelerator, step=1)

    @abstractmethod
    def _micro_batches(self, experience: Experience, metrics: Metrics) -> list[MicroBatch]:
        """Cuts an experience into micro-batches with all that the loss needs."""

    @abstractmethod
    def _parts(self, batch: MicroBatch) -> list[MicroBatch]:
        """Cuts a batch into what is computed at a time."""

    @abstractmethod
    def _loss_denominator(self, micro_batches: list[MicroBatch]) -> Tensor:
        """What these micro-batches add to the divisor of the loss."""

    @abstractmethod
    def _loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        """The part of a micro-batch in the loss of the whole optimizer step."""
