# SPDX-License-Identifier: Apache-2.0
"""PPO: a critic estimates a value for every token of a completion."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import logging

from ..algorithms import (
    explained_variance,
    gae,
    masked_mean,
    masked_whiten,
    mean_var_from_moments,
    moments,
    ppo_policy_loss,
    token_rewards,
    value_loss,
)
from .base import RLTrainer
from .distributed.deepspeed import clip_deepspeed_gradients
from .distributed.sharding import shards_weights, whole_weights
from .experience.experience import Experience, split_experience
from .experience.micro_batch import MicroBatch, fill_rows, mini_batch_rows, put_rows, select_rows
from .experience.mismatch import correct_rollout, measure_mismatch
from .metrics import Metrics, token_sum
from .models.actor_critic import CRITIC_FOLDER, ActorCritic, ActorCriticOutput
from .models.critic import load_critic
from .models.dropout import dropouts
from .models.optimization import CRITIC_GROUP, check_trains, clip_by_model, group_by_model, learning_rate_of
from .models.policy import use_lean_modules
from .models.weights import declare_float32
from .settings.ppo import PPOConfig

logger = logging.get_logger(__name__)


class PPOTrainer(RLTrainer):
    """Trains a causal LM by PPO ([Schulman et al.](https://arxiv.org/abs/1707.06347)) with a critic and GAE.

    The output folder holds the policy and its subfolder `critic` the critic, both as ordinary models or adapters.

    Args:
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks,
            optimizers, peft_config, rollout_engine, tools, environment_factory, rollout_func: As for
            [`GRPOTrainer`]. A custom optimizer must hold the parameters of both models.
        args ([`PPOConfig`], *optional*): Settings.

    Raises:
        ValueError: If settings, data, tokenizer, model, critic and optimizer do not fit together. Raised before
            training starts.
    """

    config_class = PPOConfig
    args: PPOConfig

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if shards_weights(self.accelerator):
            self._actor_critic.saves_memory = False  # recomputation would gather sharded weights in a backward pass
        self._step_kl = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)  # sum and tokens
        self._step_is_skipped = False
        self._critic_learning_rate: float | None = None
        self._keeps_forward = False
        self._kept_output: ActorCriticOutput | None = None
        self._norms: list[Tensor] | None = None  # of the gradients, if DeepSpeed updates within the backward pass
        plugin = self.accelerator.state.deepspeed_plugin
        if plugin is not None:
            plugin.deepspeed_config["gradient_clipping"] = 0.0  # DeepSpeed would clip both models together

    @staticmethod
    def kl_weight(args: PPOConfig) -> float:
        return args.kl_coef

    def trained_model(self, policy: PreTrainedModel, args: PPOConfig) -> ActorCritic:
        critic = load_critic(policy, args)
        use_lean_modules(critic, args)
        with whole_weights(policy, critic):
            return ActorCritic(policy, critic, self.layout)

    def policy_of(self, model: ActorCritic) -> PreTrainedModel:
        return model.policy

    # Step 3: values and advantages

    def add_advantages(self, experience: Experience) -> None:
        args, metrics = self.args, experience.metrics
        size = len(experience.rollouts)
        (batch,) = split_experience(experience, size, args.mask_truncated_completions, self.accelerator.device)
        # Nothing can be learned from a completion without a reward.
        batch.loss_mask = batch.loss_mask * ~experience.rewards.isnan()[:, None]
        mask = batch.loss_mask
        correct_rollout([batch], self.model_wrapped, self.policy_logps, args, metrics)
        self._add_values_and_ref_logps(batch, experience.seed, metrics)
        rewards = token_rewards(experience.rewards_to_place, mask)
        advantages, batch.returns = gae(rewards, batch.old_values, mask, args.gamma, args.lam)
        total = self.accelerator.reduce(moments(advantages, mask), reduction="sum")
        mean, var = mean_var_from_moments(total)
        batch.advantages = masked_whiten(advantages, mask, mean=mean, var=var)
        experience.tokens = batch
        experience.advantages = masked_mean(batch.advantages, mask, dim=1)

    @torch.no_grad()
    def _add_values_and_ref_logps(self, batch: MicroBatch, seed: int, metrics: Metrics) -> None:
        """Fills in the values and, with a reference, its log-probabilities.

        They are computed in the mini-batches of the first pass. The update then starts from exactly the same numbers,
        and the KL of a policy that has not moved is exactly 0.
        """
        first_pass = mini_batch_rows(len(batch), self.args.mini_batch_size, seed, iteration=0)
        parts = [(rows, select_rows(batch, rows)) for rows in first_pass]
        with metrics.phase("values"):
            batch.old_values = fill_rows(batch, parts, self._values)
        if self.reference is not None:
            with (
                metrics.phase("reference"),
                self.reference.scoring(self.model_wrapped, self.accelerator) as reference,
            ):
                batch.ref_logps = fill_rows(batch, parts, lambda part: self._reference_logps(reference, part))

    def fill_buffer(self, numbers: Sequence[int]) -> None:
        self._keeps_forward = self._can_keep_forward()
        super().fill_buffer(numbers)

    def _can_keep_forward(self) -> bool:
        """Whether the first update of a rollout can reuse the forward pass that computed the values of its mini-batch.

        No weight has changed in between, so a second pass would give the same result. This does not hold if the pass
        is random, split into parts, or one of several accumulated passes (DDP must know before a pass whether
        gradients will be exchanged). DeepSpeed and FSDP2 require the backward pass to follow directly.
        """
        args = self.args
        in_one_piece = args.gradient_accumulation_steps == 1 and args.max_tokens_per_microbatch is None
        is_free = not (self.is_deepspeed_enabled or self.is_fsdp_enabled)
        return in_one_piece and is_free and not dropouts(self._actor_critic)

    def _values(self, batch: MicroBatch) -> Tensor:
        model = self.model_wrapped
        if self._keeps_forward:
            self._keeps_forward = False
            model.train()
            with torch.enable_grad(), self.compute_loss_context_manager():
                self._kept_output = self._forward(model, batch)
            return self._kept_output.values.detach()
        was_training = model.training
        model.eval()
        try:
            return self.score_in_parts(batch, lambda part: model(part, with_scores=False).values)
        finally:
            model.train(was_training)

    def policy_logps(self, batch: MicroBatch) -> Tensor:
        rows = mini_batch_rows(len(batch), self.args.mini_batch_size, seed=0, iteration=0)
        logps = torch.zeros_like(batch.old_logps)
        for part in rows:
            put_rows(logps, part, self.score_in_parts(select_rows(batch, part), self._own_logps))
        return logps

    def _own_logps(self, batch: MicroBatch) -> Tensor:
        return self.model_wrapped(batch, self.args.temperature, with_values=False).scores.logps

    def _reference_logps(self, reference: nn.Module, batch: MicroBatch) -> Tensor:
        if reference is self.model_wrapped:
            return self.score_in_parts(batch, self._own_logps)
        return self.score_in_parts(batch, lambda part: self.token_scores(reference, part).logps)

    def measure(self, experience: Experience) -> None:
        super().measure(experience)
        batch, metrics = experience.tokens, experience.metrics  # as many rows in every process; stand-ins are masked
        values, returns, mask = batch.old_values, batch.returns, batch.loss_mask
        metrics.add_values("values/mean", values[mask.bool()], std_name="values/std")
        metrics.add_values("returns/mean", returns[mask.bool()], std_name="returns/std")
        everywhere = [
            self.accelerator.gather(self.accelerator.pad_across_processes(tensor, dim=1))
            for tensor in (values, returns, mask)
        ]
        metrics.add_mean("explained_variance", explained_variance(*everywhere), 1)

    # Step 4: update

    def micro_batches(self, experience: Experience) -> list[MicroBatch]:
        return self._pass(experience, iteration=0)

    def training_batches(self, experience: Experience) -> list[MicroBatch]:
        return [batch for number in range(self.args.ppo_update_iters) for batch in self._pass(experience, number)]

    def _pass(self, experience: Experience, iteration: int) -> list[MicroBatch]:
        rows = mini_batch_rows(len(experience.rollouts), self.args.mini_batch_size, experience.seed, iteration)
        return [select_rows(experience.tokens, part) for part in rows]

    def loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        args, mask = self.args, batch.loss_mask
        output, self._kept_output = self._kept_output or self._forward(model, batch), None
        over = {"loss_aggregation": args.loss_aggregation, "max_completion_length": args.max_completion_length}
        policy_loss, measured = ppo_policy_loss(
            batch.loss_inputs(output.scores.logps, denominator),
            clip_epsilon=args.clip_epsilon,
            kl_coef=args.kl_coef,
            **over,
        )
        measure_mismatch(output.scores.logps, batch, self.state.global_step, metrics)
        self.run_log.tokens.see(batch, output.scores.logps, model.training)
        critic_loss, measured_values = value_loss(
            output.values,
            batch.old_values,
            batch.returns,
            mask,
            cliprange_value=args.cliprange_value,
            denominator=denominator,
            **over,
        )
        num_tokens = measured.pop("num_tokens")
        self._step_kl += torch.stack([measured["approx_kl"] * num_tokens, num_tokens]).to(self._step_kl)
        metrics.add_total("policy_loss", measured.pop("policy_loss"))
        metrics.add_total("critic_loss", critic_loss.detach())
        metrics.add_mean("entropy", token_sum(output.scores.entropy, mask), num_tokens)
        for name, mean in (measured | {"value_clip_fraction": measured_values["value_clip_fraction"]}).items():
            metrics.add_mean(name, mean * num_tokens, num_tokens)
        loss = policy_loss + args.vf_coef * critic_loss
        if output.scores.aux_loss is not None:
            loss = loss + self.router_loss(output.scores.aux_loss, batch.share, metrics)
        return loss

    def learns(self, batch: MicroBatch) -> list[bool]:
        return [True] * len(batch) if self._kept_output is not None else super().learns(batch)

    def _forward(self, model: nn.Module, batch: MicroBatch) -> ActorCriticOutput:
        with_router = self.router_loss_coefficient > 0
        return model(batch, self.args.temperature, with_entropy=True, with_aux_loss=with_router)

    # Early stop

    def get_batch_samples(self, *args, **kwargs) -> tuple[list[MicroBatch], Tensor]:
        self._step_kl.zero_()
        micro_batches, denominator = super().get_batch_samples(*args, **kwargs)
        self._step_is_skipped = not any(map(len, micro_batches))
        return micro_batches, denominator

    def training_step(self, model: nn.Module, inputs: MicroBatch, num_items_in_batch: Tensor | None = None) -> Tensor:
        self._critic_learning_rate = learning_rate_of(self.optimizer, CRITIC_GROUP)
        if len(inputs) == 0:
            return torch.zeros((), device=self.accelerator.device)
        return super().training_step(model, inputs, num_items_in_batch)

    def skips_update(self) -> bool:
        """Whether the policy has moved further from the sampling policy than allowed, as a mean over all tokens.

        If so, this update and all further updates on this rollout are skipped: the rest of the buffer is replaced by
        empty micro-batches. The steps still count, also for the schedule, so that the length of a run does not depend
        on early stops.
        """
        stops = self._step_is_skipped or self._is_too_far()
        self.metrics.add_mean("early_stopped", float(stops), 1)
        if stops:
            skipped = MicroBatch.skipped(self.accelerator.device)
            self.buffer = deque(skipped for _ in self.buffer)
        return stops or super().skips_update()

    def _is_too_far(self) -> bool:
        if self.args.early_stop_kl is None:
            return False
        total, count = self.accelerator.reduce(self._step_kl, reduction="sum").tolist()
        return count > 0 and total / count > self.args.early_stop_kl

    # The Trainer: optimizer and logs

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_given = self.optimizer is not None
        optimizer = super().create_optimizer(model)
        policy, critic = self._actor_critic.parameters_by_model()
        if not is_given:
            group_by_model(optimizer, critic, self.args.critic_learning_rate)
        elif not (self.is_deepspeed_enabled or self.is_fsdp_enabled):  # which replace the parameters
            check_trains(optimizer, policy=policy, critic=critic)
        return optimizer

    @property
    def _actor_critic(self) -> ActorCritic:
        return self.accelerator.unwrap_model(self.model)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor | None:
        """Clips each model separately, and returns the norm of the policy's gradients."""
        norms, self._norms = self._norms, None
        if self.is_deepspeed_enabled and norms is None:
            return None  # the whole step was skipped
        norm, critic_norm = norms or clip_by_model(self.accelerator, *self._clipping())
        self.metrics.add_mean("critic_grad_norm", critic_norm.detach(), 1)
        self.guard.add_gradient_norm(critic_norm)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | None:
        norm = self._clip_grad_norm(model) if grad_norm is None else grad_norm
        self.guard.add_gradient_norm(norm)
        return norm

    def clip_in_deepspeed(self) -> None:
        stage = self.accelerator.state.deepspeed_plugin.zero_stage
        self._norms = clip_deepspeed_gradients(*self._clipping(), stage)

    def _clipping(self) -> tuple[tuple[list[nn.Parameter], ...], float]:
        return self._actor_critic.parameters_by_model(), self.args.max_grad_norm or float("inf")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._critic_learning_rate is not None:
            logs["critic_learning_rate"] = self._critic_learning_rate
        super().log(logs, start_time)

    # The Trainer: folders

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        weights = self._weights_to_save(self._actor_critic, state_dict)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        with_critic = self.args.save_critic or self._staging is not None
        if not with_critic and (folder / CRITIC_FOLDER).is_dir():
            logger.warning(
                f"{folder / CRITIC_FOLDER} is from an earlier run: save_critic is False. Delete it if unneeded."
            )
        self._actor_critic.save_pretrained(folder, weights, with_critic)
        for each in (folder, folder / CRITIC_FOLDER) if with_critic else (folder,):
            declare_float32(each, weights)
            self.processing_class.save_pretrained(each)
        torch.save(self.args, folder / TRAINING_ARGS_NAME)

    further_models = (CRITIC_FOLDER,)

    def _published_folders(self) -> list[str]:
        return [CRITIC_FOLDER] if self.args.save_critic else []

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # from the sharded state next to the models
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        self._actor_critic.load_saved(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_best_model()
            return
        self._actor_critic.load_saved(self.state.best_model_checkpoint)
