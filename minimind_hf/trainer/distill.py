# SPDX-License-Identifier: Apache-2.0
"""On-policy distillation: the student answers, and its teacher says at every token what it would have said."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import datasets
import torch
from peft import PeftConfig
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from ..algorithms import aggregate
from ..data import PromptDataset
from ..forward.divergences import Comparison, divergence_scores
from ..forward.head_rows import can_read_head
from ..forward.proof import compare_scores
from ..rollout import Rollout, RolloutEngine, TorchEngine
from ..rollout.agreement import failing_together
from .base import RLTrainer
from .distributed.sharding import whole_weights
from .experience.experience import Experience, selected
from .experience.forward_proof import ForwardProof, computing_dtype
from .experience.inputs import check_config_class
from .experience.micro_batch import MicroBatch
from .experience.mismatch import measure_mismatch
from .experience.off_policy import chosen_off_policy, given_rollout, no_answer, not_drawn
from .experience.parts import CPU_TOKENS, split_by_tokens
from .metrics import Metrics, token_sum
from .models.teacher import check_teacher, make_teacher
from .settings.distill import DistillConfig


class DistillTrainer(RLTrainer):
    """Trains a student by the divergence from its teacher, on completions of its own
    ([GKD](https://arxiv.org/abs/2306.13649)).

    Args:
        model (`str` or `PreTrainedModel`): The student: a name, a folder or a model, with or without adapters.
        teacher_model (`str` or `PreTrainedModel`, *optional*): The teacher: a name, a folder or a model with the
            student's vocabulary. An adapter on the base of a student with adapters shares that base. Default: the one
            that `args` names.
        args ([`DistillConfig`], *optional*): Settings.
        train_dataset, eval_dataset, processing_class, callbacks, optimizers, peft_config, rollout_engine, tools,
            environment_factory: As for [`GRPOTrainer`].
        reward_funcs, reward_processing_classes (*optional*): Rewards that are logged; nothing is learned from them.

    Raises:
        ValueError: If settings, data, tokenizer, student and teacher do not fit together. Raised before training.
    """

    config_class = DistillConfig
    needs_rewards = False
    reference_kind = "teacher"
    args: DistillConfig

    def __init__(
        self,
        model: str | PreTrainedModel,
        teacher_model: str | PreTrainedModel | None = None,
        args: DistillConfig | None = None,
        train_dataset: datasets.Dataset | Sequence[dict] | None = None,
        eval_dataset: datasets.Dataset | Sequence[dict] | dict[str, datasets.Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_funcs: str | Callable | PreTrainedModel | Sequence | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        peft_config: PeftConfig | None = None,
        rollout_engine: RolloutEngine | None = None,
        tools: list[Callable] | None = None,
        environment_factory: Callable | dict[str, Callable] | str | None = None,
    ):
        args = args or self._default_args(model)
        check_config_class(args, self.config_class)
        self._given_teacher = check_teacher(teacher_model, model, args)
        super().__init__(
            model,
            reward_funcs,
            args,
            train_dataset,
            eval_dataset,
            processing_class,
            reward_processing_classes,
            callbacks,
            optimizers,
            peft_config=peft_config,
            rollout_engine=rollout_engine,
            tools=tools,
            environment_factory=environment_factory,
        )
        self._check_off_policy()
        self.teacher.prepare(self.accelerator)
        self._teacher_engine = TorchEngine(args.max_batch_rows)  # with seq_kd
        self._teacher_proof = ForwardProof(args.verify_fast_paths, self.accelerator.device, "Answers of the teacher")

    def trained_model(self, policy: PreTrainedModel, args: DistillConfig) -> nn.Module:
        self.teacher = make_teacher(self._given_teacher, policy, self.processing_class, args, self.layout)
        with whole_weights(policy):
            self._reads_head = can_read_head(policy, self.layout)
        return policy

    def _check_off_policy(self) -> None:
        """Refuses data that cannot give the completions that the student does not draw."""
        args, prompts = self.args, self.train_dataset
        if args.lmbda == 1:
            return
        if self.agent is not None:
            raise ValueError(
                f"lmbda={args.lmbda} takes completions that the student did not draw, but with tools or an "
                "environment a completion is an episode, which has to be played. Set lmbda=1."
            )
        if not args.seq_kd and isinstance(prompts, PromptDataset):  # the rows of a stream are checked as they come
            row = prompts.first_without_answer()
            if row is not None:
                raise no_answer(row)

    @property
    def _reference_fingerprint(self) -> str | None:
        return self.teacher.fingerprint

    # Step 1

    def new_experience(self, prompts: list[dict], draw: int = 0) -> Experience:
        experience = super().new_experience(prompts, draw)
        if self.args.lmbda < 1:
            experience.off_policy = chosen_off_policy(len(prompts), self.args.lmbda, experience.seed)
        return experience

    def rollout(self, experience: Experience) -> None:
        if experience.off_policy is None:
            super().rollout(experience)
            return
        kinds = [
            selected(experience, [group for group, is_off in enumerate(experience.off_policy) if is_off == kind])
            for kind in (False, True)
        ]
        own, others = kinds
        super().rollout(own)
        experience.behind = own.behind
        with experience.metrics.phase("rollout"):
            others.rollouts = self._drawn_by_teacher(others) if self.args.seq_kd else self._given(others)
        sources, size = [iter(kind.rollouts) for kind in kinds], experience.num_generations
        experience.rollouts = [next(sources[is_off]) for is_off in experience.off_policy for _ in range(size)]

    def _given(self, experience: Experience) -> list[Rollout]:
        """The answers that the data hold."""
        ends, length = self._rollouts.eos_token_ids, self.args.max_completion_length
        with failing_together("reading the answers of the data"):
            return [
                given_rollout(prompt, self.processing_class, ends, length, experience.step)
                for prompt in experience.prompts
                for _ in range(experience.num_generations)
            ]

    def _drawn_by_teacher(self, experience: Experience) -> list[Rollout]:
        with (
            self._rollout_weights.gathered(self.model_wrapped, self.policy) as policy,
            self.teacher.drawing(policy) as teacher,
            failing_together("the rollout of the teacher"),
        ):
            self._teacher_engine.sync_weights(teacher, experience.step)
            sampling = self._rollouts.sampling(experience)
            rollouts = self._teacher_engine.generate(experience.prompt_ids, experience.num_generations, sampling)
        experience.metrics.add_sampled(len(rollouts), sum(len(rollout.completion_ids) for rollout in rollouts))
        return [not_drawn(rollout) for rollout in rollouts]

    def prove(self, experience: Experience) -> None:
        super().prove(experience)
        teacher = self.teacher
        if teacher.model is None or not self._teacher_proof.is_due:  # an adapter computes as the student does
            return
        few, temperature, layout = self.completions_of_a_proof(experience), self.args.temperature, teacher.layout
        with (
            experience.metrics.phase("proof"),
            teacher.drawing(self.policy) as whole,
            self.compute_loss_context_manager(),
        ):
            dtype = computing_dtype(self.args, whole)
            holds = self._teacher_proof.holds(
                whole, layout, lambda: compare_scores(whole, few, temperature, layout, dtype, with_gradients=False)
            )
        if not holds:
            teacher.use_plain_forward()

    def use_plain_forward(self) -> None:
        super().use_plain_forward()
        if self.teacher.model is None:
            self.teacher.use_plain_forward()

    # Step 3: there are no advantages

    def add_advantages(self, experience: Experience) -> None:
        """Nothing: every token has its teacher."""

    def measure(self, experience: Experience) -> None:
        super().measure(experience)
        if experience.off_policy is not None:
            experience.metrics.add_values("completions/on_policy", 1.0 - torch.tensor(experience.off_policy).double())

    # Step 4

    def parts(self, batch: MicroBatch) -> list[MicroBatch]:
        """Computes a few groups at a time in a single CPU process by default, as [`GRPOTrainer`] does."""
        is_one_cpu = self.accelerator.num_processes == 1 and self.accelerator.device.type == "cpu"
        if self.args.max_tokens_per_microbatch is None and is_one_cpu and self.router_loss_coefficient == 0:
            return split_by_tokens(batch, CPU_TOKENS, whole_groups=True)
        return super().parts(batch)

    def loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        args, mask = self.args, batch.loss_mask
        with_router = self.router_loss_coefficient > 0
        scores = divergence_scores(
            model,
            batch,
            self.teacher.rows(model, batch),
            Comparison(args.beta, args.temperature, args.softness),
            self.layout,
            self._reads_head,
            with_router,
        )
        loss = aggregate(scores.divergence, mask, args.loss_aggregation, denominator, args.max_completion_length)
        own = mask * ~batch.old_logps.isnan()
        measure_mismatch(scores.logps, replace(batch, loss_mask=own), self.state.global_step, metrics)
        self.run_log.tokens.see(batch, scores.logps, model.training, divergence=scores.divergence)
        num_tokens = mask.sum()
        metrics.add_mean("divergence", token_sum(scores.divergence.detach(), mask), num_tokens)
        metrics.add_mean("entropy", token_sum(scores.entropy, mask), num_tokens)
        if with_router:
            loss = loss + self.router_loss(scores.aux_loss, batch.share, metrics)
        return loss
