# SPDX-License-Identifier: Apache-2.0
"""What GRPO and PPO have in common: rollout, score, and a place in transformers' Trainer for both.

    prompts -> 1 rollout -> 2 score -> 3 advantages -> 4 update -> next prompts

The Trainer keeps its job. It asks for all micro-batches of an optimizer step in `get_batch_samples`; there they are
taken from a buffer, which steps 1 to 3 fill when it is empty, and there the global denominator of the loss is known.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.utils import set_seed
from peft import PeftConfig
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from transformers.trainer_utils import TrainOutput
from transformers.utils import logging

from ..algorithms import total_rewards
from ..atomic import whole_file
from ..data import check_tokenizer
from ..forward.introspection import context_length, eos_token_ids, unwrap, vocabulary_size
from ..forward.layouts import choose_layout
from ..forward.lean import use_lean_norms, use_onednn
from ..reports.record import COMPLETIONS_FOLDER, SAMPLES_FOLDER, STATE_FILE
from ..rewards import RewardScorer
from ..rollout import RolloutEngine, ServerGoneError
from ..rollout.agreement import failing_together
from .checkpoints.resharding import is_of_other_processes, load_resharded
from .checkpoints.resuming import checkpoint_to_resume, warn_of_earlier_run
from .checkpoints.run_folder import ending_in_order, only_run_in
from .checkpoints.saving import save_before_the_end
from .checkpoints.state import load_rollout_state, save_rollout_state
from .distributed.rollout_weights import RolloutWeights
from .distributed.sharding import check_each_node, check_mode, keep_optimizer, whole_weights
from .evaluating import EvaluatingTrainer
from .experience.experience import Experience, add_stand_ins
from .experience.inputs import (
    check_config_class,
    check_objects,
    default_output_dir,
    load_tokenizer,
    make_engine,
    make_eval_prompts,
    make_prompts,
    make_sampler,
)
from .experience.measures import repetition, thinking_closed
from .experience.micro_batch import MicroBatch
from .experience.mismatch import measure_staleness
from .experience.parts import score_in_parts, split_by_tokens
from .experience.rollouts import Rollouts
from .experience.scoring import check_reward_columns, check_totals
from .logs.completions import CompletionLog, SampleLog, print_debug
from .logs.health import HealthCallback
from .logs.progress import RLProgressCallback
from .logs.reward_notes import RewardNotes
from .logs.trackers import Trackers
from .metrics import Metrics
from .models.optimization import is_stateless, load_schedule
from .models.policy import check_fits, load_policy, router_loss_coefficient
from .models.reference import Reference
from .run_callback import RunCallback
from .settings.base import RLConfig
from .step_guard import StepWatch

logger = logging.get_logger(__name__)


class RLTrainer(EvaluatingTrainer):
    """Base of the trainers; see [`GRPOTrainer`] for the arguments."""

    loss_is_scaled_for_ga = True  # by the denominator of the whole optimizer step
    config_class: type[RLConfig]

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: str | Callable | PreTrainedModel | Sequence,
        args: RLConfig | None = None,
        train_dataset: datasets.Dataset | Sequence[dict] | None = None,
        eval_dataset: datasets.Dataset | Sequence[dict] | dict[str, datasets.Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        peft_config: PeftConfig | None = None,
        rollout_engine: RolloutEngine | None = None,
    ):
        check_objects(model, processing_class, peft_config)
        args = args or self._default_args(model)
        check_config_class(args, self.config_class)
        # From cheap to dear: whatever can be refused is refused before weights are loaded.
        tokenizer = processing_class or load_tokenizer(model, args)
        train_prompts = make_prompts(train_dataset, tokenizer, args)
        eval_prompts = make_eval_prompts(eval_dataset, tokenizer, args)
        check_tokenizer(tokenizer, train_prompts.conversational if train_prompts else False)
        self._train_sampler = make_sampler(train_prompts, args)
        engine = make_engine(args, rollout_engine)
        self._scorer = RewardScorer(
            reward_funcs,
            args.reward_weights,
            reward_processing_classes,
            model_kwargs={"trust_remote_code": args.trust_remote_code},
        )
        check_reward_columns(self._scorer, train_prompts, eval_prompts)

        set_seed(args.seed)  # adapters start at random
        fresh_adapters = peft_config is not None
        policy = load_policy(model, args, peft_config)
        check_fits(policy, tokenizer, args)
        self._rollouts = Rollouts(
            engine, args, vocabulary_size(policy), eos_token_ids(policy, tokenizer), context=context_length(policy)
        )
        self._rollouts.check_ready(policy)
        self._router_loss_coefficient = router_loss_coefficient(policy, args)
        self.layout = self._prepare_forward(policy, args)
        self._reference = Reference(policy, fresh_adapters) if self._kl_weight(args) > 0 else None

        super().__init__(
            model=self._trained_model(policy, args),
            args=args,
            data_collator=list,
            train_dataset=train_prompts,
            eval_dataset=eval_prompts,
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        check_mode(self.accelerator)
        check_each_node(args, self.accelerator)
        self._rollout_weights = RolloutWeights(self.policy, self.accelerator)
        if self._reference is not None:
            self._reference.prepare(self.accelerator)
        self._scorer.to(self.accelerator.device)
        self._use_own_progress_bar()
        self.add_callback(RunCallback(self))
        self.health = HealthCallback(args.output_dir) if args.health else None
        if self.health is not None:
            self.add_callback(self.health)
        self._trackers = Trackers(args, self.callback_handler.callbacks, self.is_world_process_zero())
        self._step_watch = StepWatch(self.accelerator, judges_gradients=not args.fp16)

        self._buffer: deque[MicroBatch] = deque()
        self._rollouts_made = 0
        self._metrics = Metrics()
        self._samples = SampleLog(Path(args.output_dir) / SAMPLES_FOLDER, self._scorer.names)
        self._completions = CompletionLog(
            Path(args.output_dir) / COMPLETIONS_FOLDER,
            self._scorer.names,
            args.num_completions_to_print,
            args.log_unique_prompts,
        )
        self._next_debug_step = 0
        self._checkpoint_to_resume: str | None = None
        self._nothing_to_learn = False
        self._skipping: bool | None = None  # whether the update that is due is skipped, once that is decided

    def _default_args(self, model: str | PreTrainedModel) -> RLConfig:
        return self.config_class(output_dir=default_output_dir(model, type(self).__name__))

    def _prepare_forward(self, policy: PreTrainedModel, args: RLConfig) -> str:
        """Gives the policy the fast paths that it can have, and returns the layout to score completions in."""
        self._use_fast_modules(policy, args)
        with whole_weights(policy):
            layout, reason = choose_layout(args.forward_layout, policy, self._router_loss_coefficient > 0)
        if reason is not None:
            logger.warning(
                "%s is trained in the padded layout, which is slower, not in shared_prompt: %s.",
                type(unwrap(policy)).__name__,
                reason,
            )
        return layout

    @staticmethod
    def _use_fast_modules(model: nn.Module, args: RLConfig) -> None:
        if args.device.type == "cpu" and not args.torch_compile:
            use_onednn(model)
            use_lean_norms(model)

    @property
    def policy(self) -> PreTrainedModel:
        """The model that is trained and saved, without what wraps it."""
        return self._policy_of(self.accelerator.unwrap_model(self.model))

    # What an algorithm adds

    @staticmethod
    @abstractmethod
    def _kl_weight(args: RLConfig) -> float:
        """Weight of the KL penalty; at 0 no reference is kept."""

    def _trained_model(self, policy: PreTrainedModel, args: RLConfig) -> nn.Module:
        """Returns what the optimizer sees: the policy, or a module that holds it (see [`~RLTrainer._policy_of`])."""
        return policy

    def _policy_of(self, model: nn.Module) -> PreTrainedModel:
        """Returns the policy in the unwrapped model."""
        return model

    @property
    def _takes_rewards_unscaled(self) -> bool:
        """Whether the loss grows with the rewards, which are compared with nothing that grows alike."""
        return True

    @abstractmethod
    def _add_advantages(self, experience: Experience, metrics: Metrics) -> None:
        """Fills in `experience.advantages`."""

    @abstractmethod
    def _micro_batches(self, experience: Experience, metrics: Metrics) -> list[MicroBatch]:
        """Cuts an experience into micro-batches with all that the loss needs."""

    @abstractmethod
    def _training_batches(self, experience: Experience, metrics: Metrics) -> list[MicroBatch]:
        """Returns `args.micro_batches_per_rollout` micro-batches: all passes over the experience, in order."""

    @abstractmethod
    def _loss_denominator(self, micro_batches: list[MicroBatch]) -> Tensor:
        """What these micro-batches add to the divisor of the loss."""

    @abstractmethod
    def _loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        """The part of a micro-batch in the loss of the whole optimizer step."""

    def _router_loss(self, aux_loss: Tensor, share: Tensor | float, metrics: Metrics) -> Tensor:
        """The balancing loss of a micro-batch (or its share of one), which weighs as one of all of the step."""
        metrics.add_mean("aux_loss", aux_loss.detach(), 1)
        parts = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        return self._router_loss_coefficient * aux_loss * share / parts

    # Steps 1 and 2: rollout and score

    def _collect(self, prompts: list[dict], num_generations: int, seed: int, metrics: Metrics) -> Experience:
        """Rolls out, scores and judges the prompts of this process."""
        experience = self._sample(prompts, num_generations, seed, metrics)
        self._judge(experience, metrics)
        return experience

    def _sample(
        self, prompts: list[dict], num_generations: int, seed: int, metrics: Metrics, num_stand_ins: int = 0
    ) -> Experience:
        with metrics.phase("rollout"):
            drawn = self._rollout([prompt["prompt_ids"] for prompt in prompts], num_generations, seed)
        num_prompts = len(prompts) - num_stand_ins
        prompts, stand_ins = prompts[:num_prompts], prompts[num_prompts:]
        rollouts, others = drawn[: num_prompts * num_generations], drawn[num_prompts * num_generations :]
        metrics.add_tokens(sum(len(rollout.completion_ids) for rollout in rollouts))
        with metrics.phase("scoring"), failing_together("scoring"):
            completions = self._decode(prompts, rollouts)
            notes = RewardNotes(len(rollouts), metrics, self._scorer.names)
            signals = self._score(prompts, rollouts, completions, num_generations, notes)
            rewards = total_rewards(signals, self._scorer.weights.to(signals), num_generations)
            check_totals(rewards, signals, self._scorer, squared=self._takes_rewards_unscaled)
        experience = Experience(prompts, rollouts, completions, num_generations, signals, rewards, seed, notes.columns)
        experience.step = self.state.global_step
        measure_staleness(rollouts, experience.step, metrics)
        add_stand_ins(experience, stand_ins, others)
        return experience

    def _judge(self, experience: Experience, metrics: Metrics) -> None:
        self._add_advantages(experience, metrics)
        self._measure(experience, metrics)

    def _rollout(self, prompt_ids: list[list[int]], num_generations: int, seed: int) -> list:
        with (
            self._rollout_weights.gathered(self.model_wrapped, self.policy) as policy,
            failing_together("the rollout"),
        ):
            return self._rollouts.draw(policy, prompt_ids, num_generations, seed, self.state.global_step)

    def _decode(self, prompts: list[dict], rollouts: list) -> list:
        texts = self.processing_class.batch_decode(
            [rollout.completion_ids for rollout in rollouts], skip_special_tokens=True
        )
        if all(isinstance(prompt["prompt"], str) for prompt in prompts):
            return texts
        return [[{"role": "assistant", "content": text}] for text in texts]

    def _score(
        self, prompts: list[dict], rollouts: list, completions: list, num_generations: int, notes: RewardNotes
    ) -> Tensor:
        if not prompts:
            return torch.empty(0, len(self._scorer.names), device=self.accelerator.device)
        repeated = [prompt for prompt in prompts for _ in range(num_generations)]
        columns = {name: [prompt["columns"][name] for prompt in repeated] for name in repeated[0]["columns"]}
        signals = self._scorer(
            [prompt["prompt"] for prompt in repeated],
            completions,
            [rollout.completion_ids for rollout in rollouts],
            columns,
            trainer_state=self.state,
            log_metric=notes.log_metric,
            log_extra=notes.log_extra,
        )
        return signals.to(self.accelerator.device)

    def _measure(self, experience: Experience, metrics: Metrics) -> None:
        experience = experience.counted
        metrics.add_values("reward", experience.rewards, std_name="reward_std")
        metrics.add_range("reward_{}", experience.rewards[~experience.rewards.isnan()])
        for name, signal in zip(self._scorer.names, experience.signals.unbind(dim=1), strict=True):
            metrics.add_values(f"rewards/{name}/mean", signal, std_name=f"rewards/{name}/std")
        metrics.add_values("advantages/mean", experience.advantages, std_name="advantages/std")
        lengths, truncated = experience.lengths, experience.truncated
        metrics.add_values("completions/mean_length", lengths)
        metrics.add_range("completions/{}_length", lengths)
        metrics.add_values("completions/clipped_ratio", truncated)
        metrics.add_values("completions/repetition", repetition(experience))
        metrics.add_values("completions/thinking_closed", thinking_closed(experience, self.processing_class))

    # Into the Trainer: data

    def get_train_dataloader(self) -> DataLoader:
        """Batches of prompt numbers; prompts are rendered when their rollout is made, once for its micro-batches."""
        if self.train_dataset is None:
            raise ValueError("There is no train_dataset to train on. Pass one to the trainer.")
        numbers, size = range(len(self.train_dataset)), self.args.prompts_per_rollout
        return self.accelerator.prepare(
            DataLoader(numbers, batch_size=size, sampler=self._train_sampler, collate_fn=list)
        )

    # Into the Trainer: training

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        keep_optimizer(self.accelerator, optimizer)
        return optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in transformers. A rollout server that is gone for good ends the run, with a checkpoint."""
        with self._alone_in_output_dir(), ending_in_order(self.is_world_process_zero()):
            try:
                checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args, self.policy, self.accelerator)
                output = super().train(checkpoint, *args, **kwargs)
            except BaseException as error:
                rescued = save_before_the_end(self) if isinstance(error, ServerGoneError) else None
                self._leave_record_after(error)
                if rescued is not None:
                    raise ServerGoneError(f"{error} {rescued}") from error
                raise
            self._leave_record()
            return output

    @contextmanager
    def _alone_in_output_dir(self) -> Iterator[None]:
        with ExitStack() as held:
            with failing_together("claiming the output folder"):
                if self.is_world_process_zero():
                    held.enter_context(only_run_in(self.args.output_dir))
            yield

    def _leave_record(self) -> None:
        """Writes what a report is made of, also of a run that an error has ended once it had logged something."""
        try:
            if self.is_world_process_zero() and self.state.log_history:
                self._samples.end()
                with whole_file(Path(self.args.output_dir) / STATE_FILE) as path:
                    self.state.save_to_json(str(path))
        finally:
            self._scorer.close()

    def _leave_record_after(self, error: BaseException) -> None:
        """The same for a run that an error has ended, which is what the user is to hear of."""
        try:
            self._leave_record()
        except Exception as second:
            logger.error(
                "After %s the record of the run could not be written to %s: %s: %s",
                type(error).__name__,
                self.args.output_dir,
                type(second).__name__,
                second,
            )

    def end(self) -> None:
        self._rollouts.close()
        super().end()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer looks for the end after a step only: resumed at its last step it would train one more.
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[MicroBatch], Tensor]:
        """Returns the micro-batches of one optimizer step, and the divisor of their loss over all processes."""
        if self._checkpoint_to_resume is not None:
            # The Trainer restores random states after this call; a rollout made here needs them now.
            self._load_rng_state(self._checkpoint_to_resume)
        micro_batches = []
        try:
            for numbers in islice(epoch_iterator, num_batches):
                if not self._buffer:
                    self._fill_buffer(numbers)
                micro_batches.append(self._buffer.popleft())
        except ServerGoneError:
            self._buffer.extendleft(reversed(micro_batches))  # a checkpoint is to hold what was not trained on yet
            raise
        denominator = self.accelerator.reduce(self._loss_denominator(micro_batches), reduction="sum")
        self._nothing_to_learn = denominator.item() == 0
        self._skipping = None
        self._step_watch.begin_step()
        return micro_batches, denominator

    def _skips_update(self) -> bool:
        """Whether the update that is due leaves everything as it is; decided once per step, by all processes."""
        if self._skipping is None:
            self._skipping = self._decide_to_skip()
        return self._skipping

    def _decide_to_skip(self) -> bool:
        return self._nothing_to_learn

    def _clip_in_engine(self) -> None:
        """Clips where DeepSpeed updates within the backward pass; unless overridden, it clips by itself."""

    def _fill_buffer(self, numbers: list[int]) -> None:
        self._rollouts.begin_training_rollout()
        seed = self._seed(self._rollouts_made)
        experience = self._collect(
            [self.train_dataset[number] for number in numbers], self.args.num_generations, seed, self._metrics
        )
        self._rollouts_made += 1
        self._show(experience)
        self._buffer.extend(self._training_batches(experience, self._metrics))

    def _seed(self, number: int) -> int:
        """The sampling seed of a rollout: a pure function of (seed, number of the rollout, process)."""
        sequence = np.random.SeedSequence((self.args.seed, number, self.args.process_index))
        return int(sequence.generate_state(1)[0])

    def _show(self, experience: Experience) -> None:
        if self.args.log_completions:
            self._completions.add(experience)
        done = self.state.global_step
        step = done + 1  # the first one that trains on it, as logs count
        if self.is_world_process_zero():
            self._samples.add(experience, step)
        if self.args.debug_mode and done >= self._next_debug_step and self.is_world_process_zero():
            self._next_debug_step = done - done % self.args.debug_interval + self.args.debug_interval
            print_debug(experience, self._scorer.names, self.processing_class, step)

    def _prepare_inputs(self, inputs: MicroBatch | list[int]) -> MicroBatch | list[int]:
        """Leaves them as they are: made on the device, and in the precision that log-probabilities need."""
        return inputs

    def floating_point_ops(self, inputs: MicroBatch) -> int:
        return super().floating_point_ops(
            {"input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)}
        )

    def _parts(self, batch: MicroBatch) -> list[MicroBatch]:
        """Cuts a batch into what is computed at a time."""
        budget = self.args.max_tokens_per_microbatch
        parts = split_by_tokens(batch, budget)
        if budget is None or not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            return parts
        # Every pass is the work of all processes there, so they need equally many.
        count = self.accelerator.gather(torch.tensor(len(parts), device=self.accelerator.device)).max().item()
        return parts if len(parts) == count else split_by_tokens(batch, budget, at_least=count)

    def _scored(self, batch: MicroBatch, score: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Scores the tokens of a batch, as many at a time as the update computes."""
        return score_in_parts(batch, self._parts, score)

    def training_step(self, model: nn.Module, inputs: MicroBatch, num_items_in_batch: Tensor | None = None) -> Tensor:
        *parts, last = self._parts(inputs)
        self._step_watch.begin_micro_batch(inputs)
        synchronizes = self.accelerator.sync_gradients
        with self._metrics.phase("update"):
            losses = []
            for part in parts:
                self.accelerator.gradient_state._set_sync_gradients(False)
                with self.accelerator.no_sync(model):
                    losses.append(super().training_step(model, part, num_items_in_batch))
            self.accelerator.gradient_state._set_sync_gradients(synchronizes)
            loss = sum(losses, start=super().training_step(model, last, num_items_in_batch))
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        norm = super()._get_grad_norm(model, grad_norm)
        self._step_watch.add_gradient_norm(norm)
        return norm

    def compute_loss(
        self,
        model: nn.Module,
        inputs: MicroBatch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        if return_outputs:
            raise ValueError(f"{type(self).__name__} computes its loss from many passes and has no outputs to return.")
        loss = self._loss(model, inputs, num_items_in_batch, self._metrics)
        self._step_watch.add_loss(loss)
        # Gradients are averaged over processes, while the denominator counts all of them.
        return loss * self.accelerator.num_processes

    # Into the Trainer: logs and resuming

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # of training, neither an evaluation's nor the summary at the end
            logs.update(self._metrics.flush(self.accelerator, self.state.global_step))
            if self.args.log_completions:
                rows = self._completions.flush(self.accelerator, self.state.global_step)
                self._trackers.log_completions(rows, self.state.global_step)
        super().log(logs, start_time)

    def _use_own_progress_bar(self) -> None:
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        if not self.args.disable_tqdm:
            self.add_callback(RLProgressCallback)

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves, with the random states, what of the experience is still to be trained on."""
        super()._save_rng_state(output_dir)
        save_rollout_state(output_dir, self.args, self._rollouts_made, self._buffer)

    def _prepare_for_training(self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None):
        if resume_from_checkpoint is not None:
            self._trackers.go_on(resume_from_checkpoint)
        elif self.is_world_process_zero():
            warn_of_earlier_run(self.args.output_dir)
        if not self._is_resharded(resume_from_checkpoint):
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        load_resharded(self.deepspeed, resume_from_checkpoint, self.args.output_dir, self.accelerator)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._load_scaler(resume_from_checkpoint)
        return prepared

    def _is_resharded(self, checkpoint: str | None) -> bool:
        if checkpoint is None or not self.is_deepspeed_enabled:
            return False
        return is_of_other_processes(checkpoint, self.accelerator)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if self._is_resharded(best):
            load_resharded(self.deepspeed, best, self.args.output_dir, self.accelerator)
        else:
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.is_fsdp_enabled and is_stateless(self.optimizer):
            load_schedule(self.optimizer, self.lr_scheduler, checkpoint)  # torch does not load an empty sharded state
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
        self._buffer.clear()
        self._rollouts_made = 0
        if checkpoint is None:
            return
        self._checkpoint_to_resume = checkpoint
        self._rollouts_made, buffer = load_rollout_state(checkpoint, self.args)
        self._buffer.extend(buffer)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restores the random states once, before the first rollout after a resume."""
        if checkpoint is None or self._checkpoint_to_resume is not None:
            super()._load_rng_state(checkpoint)
            self._checkpoint_to_resume = None
