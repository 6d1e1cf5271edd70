# SPDX-License-Identifier: Apache-2.0
"""GRPO and CISPO: the completions of one prompt are compared with each other."""

import torch
from torch import Tensor, nn

from ..algorithms import group_advantages, loss_denominator, policy_loss, zero_variance_groups
from ..forward.layouts import score_completions
from .base import RLTrainer
from .config import GRPOConfig
from .experience import Experience, MicroBatch, split_experience
from .metrics import Metrics, token_sum

LOGGED_NAMES = {
    "clip_low": "clip_ratio/low_mean",
    "clip_high": "clip_ratio/high_mean",
    "clip_region": "clip_ratio/region_mean",
}


class GRPOTrainer(RLTrainer):
    """Trains a causal LM by GRPO ([DeepSeekMath](https://arxiv.org/abs/2402.03300)) or CISPO
    ([MiniMax-M1](https://arxiv.org/abs/2506.13585)).

    Args:
        model (`str` or `PreTrainedModel`): The policy: a name, a folder or a model, with or without adapters.
        reward_funcs: One or more of: a callable with trl's signature `f(prompts, completions, completion_ids,
            **columns)`, sync or async; the name of a built-in signal; an import path `module:name`; a reward model or
            its name.
        args ([`GRPOConfig`], *optional*): Settings.
        train_dataset: Rows with `prompt` (text or messages) or MiniMind's `conversations`; other columns travel to
            the reward functions.
        eval_dataset: The same, or a dictionary of them.
        processing_class (`PreTrainedTokenizerBase`, *optional*): Unset: the model's own tokenizer.
        reward_processing_classes: Tokenizers of reward models. Unset: their own.
        callbacks, optimizers: As for transformers' Trainer.
        peft_config (`PeftConfig`, *optional*): Train new adapters of this kind instead of all weights.
        rollout_engine (`RolloutEngine`, *optional*): An engine of your own; unset: the one that `args` names.

    Raises:
        ValueError: For settings, data, tokenizer or model that do not fit together, before any training.
    """

    config_class = GRPOConfig
    args: GRPOConfig

    @staticmethod
    def _kl_weight(args: GRPOConfig) -> float:
        return args.beta

    def _add_advantages(self, experience: Experience, metrics: Metrics) -> None:
        own = len(experience.rewards)
        rewards = self.accelerator.gather(experience.rewards)
        advantages = group_advantages(rewards, experience.num_generations, self.args.scale_rewards)
        start = own * self.accelerator.process_index
        experience.advantages = advantages[start : start + own]

    def _measure(self, experience: Experience, metrics: Metrics) -> None:
        super()._measure(experience, metrics)
        without_variance = zero_variance_groups(experience.rewards, experience.num_generations)
        metrics.add_values("frac_reward_zero_std", without_variance)

    def _micro_batches(self, experience: Experience, metrics: Metrics) -> list[MicroBatch]:
        micro_batches = split_experience(
            experience,
            self.args.per_device_train_batch_size,
            self.processing_class.pad_token_id,
            self.args.mask_truncated_completions,
            self.accelerator.device,
        )
        if self._reference is not None:
            with metrics.phase("reference"):
                self._add_reference_logps(micro_batches)
        return micro_batches

    def _training_batches(self, experience: Experience, metrics: Metrics) -> list[MicroBatch]:
        return self._micro_batches(experience, metrics) * self.args.num_iterations

    @torch.no_grad()
    def _add_reference_logps(self, micro_batches: list[MicroBatch]) -> None:
        with self._reference.scoring(self.model_wrapped, self.accelerator) as model:
            for batch in micro_batches:
                batch["ref_logps"] = self._scores(model, batch).logps

    def _scores(self, model: nn.Module, batch: MicroBatch, **options: bool):
        return score_completions(model, batch, self.args.temperature, self.layout, **options)

    def _loss_denominator(self, micro_batches: list[MicroBatch]) -> Tensor:
        how, width = self.args.loss_aggregation, self.args.max_completion_length
        return torch.stack([loss_denominator(batch["loss_mask"], how, width) for batch in micro_batches]).sum()

    def _loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        with_router = self._router_loss_coefficient > 0
        scores = self._scores(model, batch, with_entropy=True, with_aux_loss=with_router)
        mask = batch["loss_mask"]
        loss, measured = policy_loss(
            scores.logps,
            batch["old_logps"],
            batch.get("ref_logps"),
            batch["advantages"],
            mask,
            loss_type=self.args.loss_type,
            beta=self.args.beta,
            epsilon=self.args.epsilon,
            epsilon_high=self.args.epsilon_high,
            loss_aggregation=self.args.loss_aggregation,
            denominator=denominator,
            max_completion_length=self.args.max_completion_length,
        )
        metrics.add_total("policy_loss", loss.detach())
        num_tokens = measured.pop("num_tokens")
        for name, mean in measured.items():
            metrics.add_mean(LOGGED_NAMES.get(name, name), mean * num_tokens, num_tokens)
        metrics.add_mean("entropy", token_sum(scores.entropy, mask), num_tokens)
        if with_router:
            loss = loss + self._router_loss(scores.aux_loss, batch.get("share", 1.0), metrics)
        return loss
