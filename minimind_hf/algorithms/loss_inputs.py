# SPDX-License-Identifier: Apache-2.0
"""What every policy loss is given: one dataclass of tensors, whose shapes and meaning are stated once, here."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a policy loss for N completions of at most C tokens.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy, with a graph.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Per completion or per token. The function of an
            objective always gets `(N, C)`.
        mask (`Tensor` of shape `(N, C)`): Valid tokens.
        ref_logps (`Tensor` of shape `(N, C)`, *optional*): Log-probabilities under the reference; can be left
            out if the KL term has no weight.
        policy_mask (`Tensor` of shape `(N, C)`, *optional*): Tokens within `mask` that the policy term uses;
            the KL term and the divisor use all tokens of `mask`.
        token_weights (`Tensor` of shape `(N, C)`, *optional*): Weight of each token's policy term, from
            [`correction_weights`]; the KL term is not weighted.
        denominator (`Tensor` or `float`, *optional*), local_tokens (`Tensor` or `float`, *optional*): See
            [`aggregate`].
        log_ratio (`Tensor` of shape `(N, C)`, *optional*): `log(policy / sampling policy)` of each token, at the
            level given by `importance_sampling_level`. [`policy_loss`] fills it in.
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
