# SPDX-License-Identifier: Apache-2.0
"""GRPO and CISPO: the completions of one prompt are compared with each other."""

from collections.abc import Callable, Sequence

import datasets
import torch
from peft import PeftConfig
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..algorithms import (
    decoupled_advantages,
    entropy_bonus,
    entropy_threshold,
    high_entropy_mask,
    masked_mean,
    policy_loss,
    spread_over_turns,
    zero_variance_groups,
)
from ..rollout import RolloutEngine
from .base import RLTrainer
from .choosing import ChoosingPrompts
from .experience.experience import Experience
from .experience.inputs import with_quantization
from .experience.micro_batch import MicroBatch
from .experience.mismatch import measure_mismatch
from .experience.parts import CPU_TOKENS, split_by_tokens
from .metrics import Metrics, token_sum
from .models.entropy_control import EntropyControl
from .models.reference import ReferenceSync, check_can_sync
from .settings.generation_kwargs import eos_of
from .settings.grpo import GRPOConfig
from .settings.trl_fields import check_head_dtype
from .trl_attributes import TrlAttributes

LOGGED_NAMES = {
    "clip_low": "clip_ratio/low_mean",
    "clip_high": "clip_ratio/high_mean",
    "clip_region": "clip_ratio/region_mean",
}


class GRPOTrainer(ChoosingPrompts, TrlAttributes, RLTrainer):
    """Trains a causal LM by GRPO ([DeepSeekMath](https://arxiv.org/abs/2402.03300)) or CISPO
    ([MiniMax-M1](https://arxiv.org/abs/2506.13585)).

    Args:
        model (`str` or `PreTrainedModel`): The policy: a name, a folder or a model, with or without adapters.
        reward_funcs: One or more reward functions. Each is a callable with trl's signature `f(prompts, completions,
            completion_ids, **columns)`, sync or async; the name of a built-in signal; an import path `module:name`; or
            a reward model or its name.
        args ([`GRPOConfig`], *optional*): Settings.
        train_dataset: Rows with `prompt` (text or messages) or MiniMind's `conversations`; other columns are passed
            to the reward functions.
        eval_dataset: The same, or a dictionary of such datasets.
        processing_class (`PreTrainedTokenizerBase`, *optional*): Tokenizer. Default: the model's.
        reward_processing_classes: Tokenizers of reward models. Default: their own.
        callbacks, optimizers: As for transformers' Trainer.
        quantization_config (*optional*): Used to load a model passed by its name.
        peft_config (`PeftConfig`, *optional*): Trains new adapters of this kind instead of all weights.
        tools (`list[Callable]`, *optional*): Functions with type hints and a Google docstring, sync or async, that the
            policy may call. See docs/agents.md.
        rollout_func (`Callable`, *optional*): trl's `f(prompts, trainer) -> dict`, in place of an engine.
        environment_factory (*optional*): A class of environments, a dictionary of them (chosen by the row's column
            `environment`), or a game such as `"textarena:FrozenLake-v0"`.
        rollout_engine (`RolloutEngine`, *optional*): A custom engine. Default: the one named in `args`.

    Raises:
        ValueError: If settings, data, tokenizer and model do not fit together. Raised before training starts.
    """

    config_class = GRPOConfig
    args: GRPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: str | Callable | PreTrainedModel | Sequence | None = None,
        args: GRPOConfig | None = None,
        train_dataset: datasets.Dataset | Sequence[dict] | None = None,
        eval_dataset: datasets.Dataset | Sequence[dict] | dict[str, datasets.Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        quantization_config: QuantizationConfigMixin | None = None,
        peft_config: PeftConfig | None = None,
        tools: list[Callable] | None = None,
        rollout_func: Callable | None = None,
        environment_factory: Callable | dict[str, Callable] | str | None = None,
        rollout_engine: RolloutEngine | None = None,
    ):
        super().__init__(
            model,
            reward_funcs,
            with_quantization(model, args or self._default_args(model), quantization_config),
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
            rollout_func=rollout_func,
        )
        self._rollouts.eos_token_ids = eos_of(self.args) or self._rollouts.eos_token_ids
        check_head_dtype(self.args, self.policy)
        self.prepare_choosing()
        self._step_tokens: Tensor | None = None
        self.entropy_control = EntropyControl(self.args, self.accelerator, lambda: self.metrics)
        self.add_callback(self.entropy_control)
        self._reference_sync: ReferenceSync | None = None
        if self.args.sync_ref_model:
            check_can_sync(self.reference)
            self._reference_sync = ReferenceSync(self.reference.model, self.accelerator)
            self.add_callback(self._reference_sync)

    @staticmethod
    def kl_weight(args: GRPOConfig) -> float:
        return args.beta

    @property
    def takes_rewards_unscaled(self) -> bool:
        return self.args.scale_rewards == "none"

    # Step 3

    def add_advantages(self, experience: Experience) -> None:
        args, group_size = self.args, experience.num_generations
        if args.turn_discount < 1 or experience.turn_rewards is not None:
            self._add_turn_advantages(experience)
        elif args.multi_objective_aggregation == "normalize_then_sum":
            experience.advantages = self.over_all(
                experience.signals, lambda signals: decoupled_advantages(signals, self.scorer.weights, group_size)
            )
        else:
            experience.advantages = self.over_all(
                experience.rewards, lambda rewards: args.estimate_advantages(rewards, group_size)
            )

    def _add_turn_advantages(self, experience: Experience) -> None:
        self.args.check_turns()
        rows = experience.rewards_by_turn
        lengths = [len(row) for row in rows]
        packed = torch.zeros(len(rows), 1 + max(lengths, default=0), dtype=torch.float64)  # length, then rewards
        for index, row in enumerate(rows):
            packed[index, : 1 + len(row)] = torch.tensor([len(row), *row], dtype=torch.float64)
        packed = self.accelerator.pad_across_processes(packed.to(self.accelerator.device), dim=1)
        advantages = self.over_all(
            packed,
            lambda every: self.args.estimate_turn_advantages(
                every[:, 1:], every[:, 0].long(), experience.num_generations
            ),
        )
        experience.turn_advantages = advantages.to(experience.rewards.dtype)
        masks = experience.own_masks().to(self.accelerator.device)
        experience.advantages = masked_mean(spread_over_turns(experience.turn_advantages, masks), masks, dim=1)

    def measure(self, experience: Experience) -> None:
        super().measure(experience)
        counted = experience.counted
        if counted.turn_advantages is None:
            without_variance = zero_variance_groups(counted.rewards, counted.num_generations)
        else:
            by_group = counted.turn_advantages.unflatten(0, (-1, counted.num_generations))
            without_variance = (by_group == 0).all(dim=2).all(dim=1)
        experience.metrics.add_values("frac_reward_zero_std", without_variance)

    # Step 4

    def training_batches(self, experience: Experience) -> list[MicroBatch]:
        return self.micro_batches(experience) * self.args.num_iterations  # the same batches, several passes

    def parts(self, batch: MicroBatch) -> list[MicroBatch]:
        """Computes a few groups at a time in a single CPU process by default: it saves memory at no cost in time.

        A router's loss and a quantile of entropies need all tokens of a micro-batch, so they prevent this.
        """
        is_one_cpu = self.accelerator.num_processes == 1 and self.accelerator.device.type == "cpu"
        needs_all_tokens = self.router_loss_coefficient > 0 or self.args.top_entropy_quantile < 1
        if self.args.max_tokens_per_microbatch is None and is_one_cpu and not needs_all_tokens:
            return split_by_tokens(batch, CPU_TOKENS, whole_groups=True)
        return super().parts(batch)

    def learns(self, batch: MicroBatch) -> list[bool]:
        """Completions without advantage count if something other than the advantage moves the policy."""
        counted = super().learns(batch)
        args = self.args
        others = self.kl_weight(args) or self.entropy_control.weight or self.router_loss_coefficient
        needs_every_completion = others or args.top_entropy_quantile < 1 or not args.objective.needs_advantage
        if needs_every_completion or batch.has_advantage is None:
            return counted
        return [counts and has_one for counts, has_one in zip(counted, batch.has_advantage, strict=True)]

    def get_batch_samples(self, *args, **kwargs) -> tuple[list[MicroBatch], Tensor]:
        micro_batches, denominator = super().get_batch_samples(*args, **kwargs)
        if self.entropy_control.weight:
            tokens = torch.stack([batch.loss_mask.sum() for batch in micro_batches]).sum()
            self._step_tokens = self.accelerator.reduce(tokens, reduction="sum")
        return micro_batches, denominator

    def loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        with_router = self.router_loss_coefficient > 0
        with_bonus = self.entropy_control.weight != 0 and model.training
        output = self.token_scores(
            model, batch, with_entropy=True, with_aux_loss=with_router, entropy_gradient=with_bonus
        )
        chosen = self._uncertain_tokens(output.entropy, batch.loss_mask)
        inputs = batch.loss_inputs(output.logps, denominator, policy_mask=chosen)
        loss, measured = policy_loss(inputs, self.args.loss_settings())
        measure_mismatch(output.logps, batch, self.state.global_step, metrics)
        self.run_log.tokens.see(batch, output.logps, model.training)
        metrics.add_total("policy_loss", loss.detach())
        num_tokens = measured.pop("num_tokens")
        for name, mean in measured.items():
            metrics.add_mean(LOGGED_NAMES.get(name, name), mean * num_tokens, num_tokens)
        metrics.add_mean("entropy", token_sum(output.entropy, batch.loss_mask), num_tokens)
        if model.training:
            seen = batch.loss_mask if chosen is None else chosen
            self.entropy_control.measure(token_sum(output.entropy, seen), seen.sum())
        if with_bonus:
            loss = loss - self.entropy_control.weight * self._mean_entropy(output.entropy, batch.loss_mask, chosen)
        if with_router:
            loss = loss + self.router_loss(output.aux_loss, batch.share, metrics)
        return loss

    def _uncertain_tokens(self, entropy: Tensor, mask: Tensor) -> Tensor | None:
        """Marks the tokens with the highest entropies over all processes; `None` stands for all tokens."""
        if self.args.top_entropy_quantile == 1:
            return None
        everywhere = torch.where(mask.bool(), entropy.detach().float(), torch.nan).flatten()
        if self.accelerator.num_processes > 1:
            padded = self.accelerator.pad_across_processes(everywhere, pad_index=float("nan"))
            everywhere = self.accelerator.gather(padded)
        return high_entropy_mask(entropy, mask, entropy_threshold(everywhere, self.args.top_entropy_quantile))

    def _mean_entropy(self, entropy: Tensor, mask: Tensor, chosen: Tensor | None) -> Tensor:
        """A micro-batch's part of the mean entropy, over the tokens of the step or the chosen tokens of each batch."""
        if chosen is None:
            return entropy_bonus(entropy, mask, self._step_tokens)
        parts = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        return entropy_bonus(entropy, chosen, chosen.sum()) / parts

    # The Trainer: checkpoints

    def _save_rng_state(self, output_dir: str) -> None:
        """The Trainer's last hook while it writes a checkpoint, so everything of our own is saved here."""
        super()._save_rng_state(output_dir)
        if self._reference_sync is not None:
            self._reference_sync.save(output_dir, writes=self.args.should_save)
        if self.args.should_save:
            self.entropy_control.save(output_dir)
            if self.prompt_memory is not None:
                self.prompt_memory.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        self.entropy_control.load(checkpoint)
        if self.prompt_memory is not None:
            self.prompt_memory.load(checkpoint)
        if self._reference_sync is not None:
            self._reference_sync.load(checkpoint)
