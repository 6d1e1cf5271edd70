# SPDX-License-Identifier: Apache-2.0
"""Losses that weigh ratios down smoothly, where a clip would cut: SAPO by token, VESPO by completion."""

import math

import torch
from torch import Tensor

from .loss_inputs import LossInputs
from .masking import fill_masked, masked_sum, require_same_shape
from .ratios import bounded_exp

# The bounds of the authors' own implementation, which trl has too.
LARGEST_LOG_RATIO = 20.0
SMALLEST_LOG_WEIGHT = math.log(1e-8)
SMALLEST_LAMBDA = 1e-4


def sapo_token_loss(
    log_ratio: Tensor, advantages: Tensor, temperature_pos: float = 1.0, temperature_neg: float = 1.05
) -> Tensor:
    """The SAPO loss of each token, `-(4 / t * sigmoid(t * (ratio - 1)) * A)`
    ([Soft Adaptive Policy Optimization](https://arxiv.org/abs/2511.20347)).

    At a ratio of 1 its gradient is that of `-ratio * A`; further away the gradient fades, the faster the higher `t`.

    Args:
        log_ratio (`Tensor` of shape `(N, C)`): `log(policy / policy that sampled)`.
        advantages (`Tensor` of shape `(N, C)`): Advantage of each token.
        temperature_pos (`float`), temperature_neg (`float`): `t` where the advantage is above 0, and elsewhere.

    Returns:
        `Tensor` of shape `(N, C)`.
    """
    temperature = torch.where(advantages > 0, temperature_pos, temperature_neg).to(log_ratio)
    gate = torch.sigmoid(temperature * (bounded_exp(log_ratio) - 1)) * 4 / temperature
    return -(gate * advantages)


@torch.no_grad()
def vespo_weights(inputs: LossInputs, positive: tuple[float, float], negative: tuple[float, float]) -> Tensor:
    """The constant weight that VESPO gives a completion, `exp(l) * w^k * exp(-l * w)`
    ([VESPO](https://arxiv.org/abs/2602.10693)).

    `w` is the ratio of the whole completion, the product of those of its tokens: not the mean that
    `importance_sampling_level="sequence"` takes. Where there are `token_weights`, they are factors of `w`.

    Args:
        inputs ([`LossInputs`]): Clean, `(N, C)` throughout.
        positive (`tuple[float, float]`), negative (`tuple[float, float]`): `(k, l)` where the advantage is at least
            0, and below.

    Returns:
        `Tensor` of shape `(N, C)`; 1 where policy and the one that sampled agree.
    """
    bound = LARGEST_LOG_RATIO
    log_weight = masked_sum((inputs.logps - inputs.old_logps).clamp(-bound, bound), inputs.mask, dim=1)
    if inputs.token_weights is not None:
        require_same_shape(inputs.mask, token_weights=inputs.token_weights)
        correction = torch.log(fill_masked(inputs.token_weights, inputs.mask)).clamp(SMALLEST_LOG_WEIGHT, bound)
        log_weight = log_weight + masked_sum(correction, inputs.mask, dim=1)
    log_weight = log_weight.clamp(SMALLEST_LOG_WEIGHT, bound)[:, None]
    is_positive = inputs.advantages >= 0
    power = torch.where(is_positive, positive[0], negative[0]).to(log_weight)
    decay = torch.where(is_positive, positive[1], negative[1]).to(log_weight).clamp(min=SMALLEST_LAMBDA)
    log_phi = decay + power * log_weight - decay * torch.exp(log_weight)
    return torch.exp(log_phi).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
