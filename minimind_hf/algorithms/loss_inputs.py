# SPDX-License-Identifier: Apache-2.0
"""What every policy loss is given: one dataclass of tensors, whose shapes and meaning are stated once, here."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss is told of N completions of at most C tokens.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities of the policy, with a graph.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Of each completion, or of each token. The function of an
            objective gets `(N, C)`.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        ref_logps (`Tensor` of shape `(N, C)`, *optional*): Log-probabilities of the reference; may be unset when the
            KL term has no weight.
        policy_mask (`Tensor` of shape `(N, C)`, *optional*): Tokens that the policy's term sees, of those in `mask`;
            the KL term and the divisor see all.
        token_weights (`Tensor` of shape `(N, C)`, *optional*): Weight of each token's policy term, from
            [`correction_weights`]; the KL term is not weighted.
        denominator (`Tensor` or `float`, *optional*), local_tokens (`Tensor` or `float`, *optional*): See
            [`aggregate`].
        log_ratio (`Tensor` of shape `(N, C)`, *optional*): `log(policy / policy that sampled)` of each token, at the
            level that `importance_sampling_level` names. [`policy_loss`] fills it in.
    """

    logps: Tensor
    old_logps: Tensor
    advantages: Tensor
    mask: Tensor
    ref_logps: Tensor | None = None
    policy_mask: Tensor | None = None
    token_weights: Tensor | None = None
    denominator: Tensor | float | None = None
    local_tokens: Tensor | float | None = None
    log_ratio: Tensor | None = None
