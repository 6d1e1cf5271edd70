# SPDX-License-Identifier: Apache-2.0
"""Before the first update on a device, a run compares the forward pass that it trains with to the plain one."""

from torch import nn

from ..forward.introspection import vocabulary_size
from ..forward.proof import Finding, compare_scores, compare_values, plain_layout_of
from ..forward.token_batch import TokenBatch
from .checkpoints.checkpointing import CheckpointingTrainer
from .distributed.rollout_weights import RolloutWeights
from .distributed.sharding import shards_weights
from .experience.experience import Experience, split_experience
from .experience.forward_proof import ForwardProof, computing_dtype, few_completions, use_plain_modules
from .models.actor_critic import ActorCritic
from .models.reference import Reference
from .settings.base import RLConfig


class ProvingTrainer(CheckpointingTrainer):
    """What [`FourSteps`] knows of fast paths; see the setting `verify_fast_paths`."""

    args: RLConfig
    layout: str
    reference: Reference | None
    router_loss_coefficient: float
    _forward_proof: ForwardProof
    _rollout_weights: RolloutWeights

    def prove(self, experience: Experience) -> None:
        """Compares the layout and kernels of the forward pass with the plain ones, at the first rollout on a device.

        If they differ, the run goes on with the plain ones.
        """
        if not self._forward_proof.is_due:
            return
        policy, few = self.policy, self.completions_of_a_proof(experience)
        with (
            experience.metrics.phase("proof"),
            self._rollout_weights.gathered(self.model_wrapped, policy) as whole,
            self.compute_loss_context_manager(),
        ):
            holds = self._forward_proof.holds(whole, self.layout, lambda: self._compare(whole, few))
        if not holds:
            self.use_plain_forward()

    def completions_of_a_proof(self, experience: Experience) -> TokenBatch:
        """A few completions of a rollout, on the device."""
        device, count = self.accelerator.device, len(experience.rollouts)
        (batch,) = split_experience(experience, count, mask_truncated=False, device=device)
        return few_completions(batch, vocabulary_size(self.policy))

    def _compare(self, policy: nn.Module, few: TokenBatch) -> Finding:
        dtype, is_whole = computing_dtype(self.args, policy), not shards_weights(self.accelerator)
        with_router = self.router_loss_coefficient > 0
        found = compare_scores(policy, few, self.args.temperature, self.layout, dtype, with_router, is_whole)
        both = self._trained
        if not isinstance(both, ActorCritic) or not is_whole:
            return found
        return found.and_also(compare_values(both.critic, few, both.values_layout, dtype))

    def use_plain_forward(self) -> None:
        """From now on, all updates use the plain layout and modules."""
        self.layout = plain_layout_of(self.layout)
        if isinstance(self._trained, ActorCritic):
            self._trained.layout = self._trained.values_layout = self.layout
        copies = [] if self.reference is None or self.reference.model is None else [self.reference.model]
        use_plain_modules(self.model, *copies)

    @property
    def _trained(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)
