# SPDX-License-Identifier: Apache-2.0
"""The loop that all algorithms share, on transformers' Trainer.

    prompts -> 1 rollout -> 2 score -> 3 advantages -> 4 update -> next prompts

[`RLTrainer.collect`] runs steps 1 to 3 for one rollout and cuts it into micro-batches; `training_step` is step 4. An
algorithm fills in steps 3 and 4. The Trainer calls `get_batch_samples` for the micro-batches of each optimizer step.
It takes them from a buffer, makes a new rollout if the buffer is empty, and computes the denominator of the loss over
all processes.

Checkpoints and resuming are in `checkpoints/`, evaluation is in `evaluating.py`, output for people in `logs/`, and the
checks between gradients and update in `step_guard.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import datasets
import torch
from accelerate.utils import set_seed
from peft import PeftConfig
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback

from ..forward.generation_settings import make_generation_config_savable
from ..language import Text
from ..rollout import RolloutEngine, ServerGoneError
from .checkpoints.card import described_run
from .distributed.rollout_weights import RolloutWeights
from .distributed.sharding import check_each_node, check_mode, keep_optimizer
from .evaluating import EvaluatingTrainer
from .experience.agents import all_weights, check_reward_source, make_agent, make_scorer
from .experience.experience import Experience
from .experience.forward_proof import ForwardProof
from .experience.inputs import (
    check_config_class,
    check_objects,
    default_output_dir,
    load_tokenizer,
    make_engine,
    make_sampler,
    prompt_numbers,
)
from .experience.micro_batch import MicroBatch
from .experience.prompts import prompts_of_run
from .experience.rollouts import rollouts_for
from .experience.scoring import check_reward_columns
from .logs.about import about_run
from .logs.health import HealthCallback, stop_for_engine
from .logs.progress import RLProgressCallback
from .logs.run_log import RunLog
from .metrics import Metrics
from .models.optimization import fill_gradients
from .models.policy import check_context, check_fits, fast_layout, load_policy, router_loss_coefficient
from .models.reference import Reference
from .probing import Probing
from .settings.base import RLConfig
from .step_guard import StepGuard


class RLTrainer(Probing, EvaluatingTrainer):
    """Base class of the trainers. See [`GRPOTrainer`] for the arguments, docs/extending.md for a new algorithm.

    An algorithm needs [`~RLTrainer.add_advantages`], [`~RLTrainer.loss`] and a config; the other hooks have defaults.
    """

    config_class: type[RLConfig]  # the algorithm's config
    needs_rewards = True  # whether a run without any reward function is refused
    loss_is_scaled_for_ga = True  # by the denominator of the whole optimizer step

    # The four steps

    def collect(self, numbers: Sequence[int]) -> list[MicroBatch]:
        """Makes a rollout for these rows of the train dataset, and returns the micro-batches for the update.

        The hooks between the steps, `choose_prompts` and `resample`, do nothing unless a setting asks for them.
        """
        numbers = self.choose_prompts(numbers)
        experience = self.new_experience(self.read_prompts(numbers))
        self.rollout(experience)
        self.prove(experience)
        self.score(experience)
        experience = self.resample(experience, numbers)
        self._rollouts.rest()
        self.add_advantages(experience)
        self.record(experience)
        return self.training_batches(experience)

    def record(self, experience: Experience) -> None:
        """Audits and measures a rollout, and logs its completions."""
        self.audit(experience)
        self.measure(experience)
        steps = self.args.micro_batches_per_rollout / self.args.gradient_accumulation_steps
        self.run_log.add(experience, is_last=experience.step + steps >= self.state.max_steps)

    # The Trainer: construction

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: str | Callable | PreTrainedModel | Sequence | None = None,
        args: RLConfig | None = None,
        train_dataset: datasets.Dataset | Sequence[dict] | None = None,
        eval_dataset: datasets.Dataset | Sequence[dict] | dict[str, datasets.Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        peft_config: PeftConfig | None = None,
        rollout_engine: RolloutEngine | None = None,
        tools: list[Callable] | None = None,
        environment_factory: Callable | dict[str, Callable] | str | None = None,
        rollout_func: Callable | None = None,
    ):
        check_objects(model, processing_class, peft_config)
        if self.needs_rewards:
            check_reward_source(reward_funcs, environment_factory)
        args = args or self._default_args(model)
        check_config_class(args, self.config_class)
        args.check_again()
        # Cheap checks first: everything that can be refused is refused before weights are loaded.
        tokenizer = self.processing_class = processing_class or load_tokenizer(model, args)
        self.agent = make_agent(args, tools, environment_factory, rollout_func, tokenizer)
        prompts = prompts_of_run(train_dataset, eval_dataset, tokenizer, args, self.agent)
        self._train_sampler = make_sampler(prompts["train_dataset"], args)
        engine = make_engine(args, rollout_engine)
        optional = not self.needs_rewards
        self.scorer = make_scorer(reward_funcs, reward_processing_classes, args, self.agent, may_be_empty=optional)
        if rollout_func is None:  # a rollout_func may add columns
            check_reward_columns(self.scorer, *prompts.values())

        set_seed(args.seed)  # adapters are initialized at random
        policy = load_policy(model, args, peft_config)
        check_fits(policy, tokenizer, args)
        self.rollout_func = rollout_func
        function = None if rollout_func is None else lambda prompts: rollout_func(prompts, self)
        self._rollouts = rollouts_for(policy, tokenizer, engine, args, prompts, self.agent, function)
        self._audit_is_due = True
        self._prepare_forward(policy, args, fresh_adapters=peft_config is not None)

        super().__init__(
            model=self.trained_model(policy, args),
            args=args,
            data_collator=list,
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
            **prompts,
        )
        make_generation_config_savable(self.policy, tokenizer)  # after the critic has copied the policy's config
        self._prepare_devices()
        self.metrics = Metrics()
        self._add_callbacks()
        self.prepare_probes()

    def _prepare_forward(self, policy: PreTrainedModel, args: RLConfig, fresh_adapters: bool) -> None:
        """Chooses how the policy is computed, and keeps a reference where there is a KL penalty."""
        self.router_loss_coefficient = router_loss_coefficient(policy, args)
        self.layout = fast_layout(policy, args, self.router_loss_coefficient > 0)
        self.reference = Reference(policy, fresh_adapters=fresh_adapters) if self.kl_weight(args) > 0 else None

    def _prepare_devices(self) -> None:
        check_mode(self.accelerator)
        check_each_node(self.args, self.accelerator)
        self._rollout_weights = RolloutWeights(self.policy, self.accelerator)
        self._forward_proof = ForwardProof(self.args.verify_fast_paths, self.accelerator.device)
        if self.reference is not None:
            self.reference.prepare(self.accelerator)
        self.scorer.to(self.accelerator.device)

    def _default_args(self, model: str | PreTrainedModel) -> RLConfig:
        return self.config_class(output_dir=default_output_dir(model, type(self).__name__))

    def _add_callbacks(self) -> None:
        args = self.args
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        if not args.disable_tqdm:
            self.add_callback(RLProgressCallback)
        self.health = HealthCallback(args.output_dir, args.language) if args.health else None
        self.guard = StepGuard(self.accelerator, self.skips_update, self._judge, judges_gradients=not args.fp16)
        self.run_log = RunLog(
            args,
            self.accelerator,
            self.scorer.names,
            self.processing_class,
            self.callback_handler.callbacks,
            lambda: described_run(self) | {"about": about_run(self)},
        )
        for callback in (self.guard, self.run_log, self.health):
            if callback is not None:
                self.add_callback(callback)

    def _judge(self, not_finite: Text | None, k3: float) -> None:
        """Ends the run before an update that would spoil the weights."""
        limit = self.args.max_sampling_k3
        if not_finite is not None and self.health is not None:
            self.health.stop(not_finite, self.state)
        if limit is not None and k3 > limit:
            stop_for_engine(k3, limit, self.state, self.health, self.args.output_dir)

    # The Trainer: data

    def get_train_dataloader(self) -> DataLoader:
        """Returns batches of prompt numbers; the prompts are rendered once, when their rollout is made."""
        if self.train_dataset is None:
            raise ValueError("train_dataset is None, so there is nothing to train on. Pass one to the trainer.")
        numbers, size = prompt_numbers(self.train_dataset), self.args.prompts_per_rollout
        loader = DataLoader(numbers, batch_size=size, sampler=self._train_sampler, collate_fn=list)
        return self.accelerator.prepare(loader)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[MicroBatch], Tensor]:
        """Returns the micro-batches of one optimizer step, and the divisor of their loss over all processes."""
        micro_batches = []
        try:
            for numbers in islice(epoch_iterator, num_batches):
                self.restore_random_states()
                if not self.buffer:  # the sampler repeats the numbers of a rollout for each of its micro-batches
                    self.fill_buffer(numbers)
                micro_batches.append(self.buffer.popleft())
        except ServerGoneError:
            self.buffer.extendleft(reversed(micro_batches))  # a checkpoint must hold everything not yet trained on
            raise
        denominator = self.accelerator.reduce(self.loss_denominator(micro_batches), reduction="sum")
        self._step_denominator = denominator
        self.guard.begin_step(self.metrics)
        return micro_batches, denominator

    def fill_buffer(self, numbers: Sequence[int]) -> None:
        """Makes the next training rollout and fills the buffer."""
        self._rollouts.begin_training_rollout()
        self.buffer.extend(self.collect(numbers))
        self.rollouts_made += 1

    def _prepare_inputs(self, inputs: MicroBatch | list[int]) -> MicroBatch | list[int]:
        """Returns the inputs unchanged: they are already on the device, in the precision of log-probabilities."""
        return inputs

    def floating_point_ops(self, inputs: MicroBatch) -> int:
        return super().floating_point_ops({"input_ids": torch.empty(inputs.num_padded_tokens, device="meta")})

    def _track_num_input_tokens(self, inputs: MicroBatch) -> None:
        super()._track_num_input_tokens({"input_ids": torch.ones(inputs.num_padded_tokens)})

    # The Trainer: training

    def check_settings(self) -> None:
        self.args.check_again()
        check_context(self.policy, self.args)
        self.scorer.follow(all_weights(self.args, self.agent))
        if self.reference is None and self.kl_weight(self.args) > 0:
            raise ValueError(
                f"The weight of the KL penalty (beta, kl_coef) is {self.kl_weight(self.args)}, but it was 0 when the "
                "trainer was made, which therefore has no reference. Set it before the trainer is made."
            )
        self._train_sampler = make_sampler(self.train_dataset, self.args)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[nn.Module, DataLoader]:
        if resume_from_checkpoint is not None:
            self.run_log.trackers.go_on(resume_from_checkpoint)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if self.is_deepspeed_enabled:
            self.guard.guard(self.deepspeed, self.clip_in_deepspeed)
        self.metrics = Metrics(step=self.state.global_step)
        return prepared

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        keep_optimizer(self.accelerator, optimizer)
        return optimizer

    def _run_epoch(self, *args: Any, epoch: int, **kwargs: Any) -> None:
        self._train_sampler.set_epoch(epoch)
        self.train_dataset.set_epoch(epoch)
        super()._run_epoch(*args, epoch=epoch, **kwargs)

    def training_step(self, model: nn.Module, inputs: MicroBatch, num_items_in_batch: Tensor | None = None) -> Tensor:
        self.guard.begin_micro_batch(inputs)
        work = self.work(inputs)
        if work is None:
            fill_gradients(model)
            return torch.zeros((), device=self.accelerator.device)
        *parts, last = self.parts(work)
        synchronizes = self.accelerator.sync_gradients
        with self.metrics.phase("update"):
            losses = []
            for part in parts:
                self.accelerator.gradient_state._set_sync_gradients(False)
                with self.accelerator.no_sync(model):
                    losses.append(super().training_step(model, part, num_items_in_batch))
            self.accelerator.gradient_state._set_sync_gradients(synchronizes)
            return sum(losses, start=super().training_step(model, last, num_items_in_batch))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: MicroBatch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        if return_outputs:
            raise ValueError(
                f"return_outputs=True, but {type(self).__name__} computes its loss in several passes and has no "
                "outputs to return. Leave it at False."
            )
        loss = self.loss(model, inputs, num_items_in_batch, self.metrics)
        self.guard.add_loss(loss)
        # Gradients are averaged over processes, while the denominator counts all of them.
        return loss * self.accelerator.num_processes

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        norm = super()._get_grad_norm(model, grad_norm)
        self.guard.add_gradient_norm(norm)
        return norm

    # The Trainer: logs and the end

    @contextmanager
    def recording(self) -> Iterator[None]:
        try:
            with self.run_log.recording(lambda: self.state):
                yield
        finally:
            self.scorer.close()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # a training log, not an evaluation or the final summary
            logs.update(self.metrics.flush(self.accelerator, self.state.global_step))
            self.run_log.flush(self.state.global_step)
        super().log(logs, start_time)

    def end(self) -> None:
        self._rollouts.close()
        super().end()
