# SPDX-License-Identifier: Apache-2.0
"""The table of policy losses. A row holds everything that the settings, the model card and the docs need for one loss.

A new loss is a function of [`LossInputs`] and [`LossSettings`] that returns each token's loss, and a row here. A
custom loss needs no row: `loss_type="file.py:function"`.

The aggregation of `cispo`, `grpo`, `sapo` and `vespo` can be chosen. `dr_grpo`, `dapo`, `bnpo` and `luspo` are the
objective `grpo` with the aggregation from their papers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .loss_inputs import LossInputs
from .masking import require_same_shape
from .ratios import bounded_exp
from .soft_losses import sapo_token_loss, vespo_weights

CISPO_EPSILON_HIGH = 5.0


@dataclass(frozen=True)
class LossSettings:
    """The settings of a policy loss, with the same names as in `GRPOConfig`.

    Args:
        loss_type (`str` or [`Objective`]): A name in `OBJECTIVES`, or a custom row.
        beta (`float`): Weight of the KL term.
        epsilon (`float`): Distance of the lower clip from 1, if the objective clips.
        epsilon_high (`float`, *optional*): See [`resolve_epsilon_high`].
        delta (`float`, *optional*): Upper bound of the ratio if the advantage is negative, for `"grpo"`
            ([INTELLECT-2](https://arxiv.org/abs/2505.07291)).
        importance_sampling_level (`str`): `"token"`; `"sequence"`: all tokens of a completion have the ratio
            `exp(mean of new - old)` ([GSPO](https://arxiv.org/abs/2507.18071)); `"sequence_token"`: the same value,
            with the gradient of each token's own log-probability (GSPO-token, same paper).
        use_bias_correction_kl (`bool`): Multiply k3 by the ratio, which makes its gradient that of the reverse KL
            ([DeepSeek-V3.2](https://arxiv.org/abs/2512.02556)).
        off_policy_mask_threshold (`float`, *optional*): See [`off_policy_mask`].
        loss_aggregation (`str`, *optional*), max_completion_length (`int`, *optional*): See [`aggregate`].
            Default: the objective's own aggregation.
        sapo_temperature_pos (`float`), sapo_temperature_neg (`float`): See [`sapo_token_loss`].
        vespo_k_pos (`float`), vespo_lambda_pos (`float`), vespo_k_neg (`float`), vespo_lambda_neg (`float`): See
            [`vespo_weights`].
    """

    loss_type: "str | Objective" = "cispo"
    beta: float = 0.1
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    importance_sampling_level: str = "token"
    use_bias_correction_kl: bool = False
    off_policy_mask_threshold: float | None = None
    loss_aggregation: str | None = None
    max_completion_length: int | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    @property
    def upper_clip(self) -> float:
        """`epsilon_high`, with its default for this loss filled in."""
        return resolve_epsilon_high(self.loss_type, self.epsilon, self.epsilon_high)


TokenLoss = Callable[[LossInputs, LossSettings], Tensor]


@dataclass(frozen=True)
class Objective:
    """A policy loss.

    Args:
        token_loss (`Callable`): Takes clean inputs (all `(N, C)`, masked slots replaced) and settings; returns the
            loss of each token, `(N, C)`, without the KL term.
        label (`str`), summary (`str`): Its name in prose, and a description in a few words, for help and docs.
        clipped (`Callable`, *optional*): Takes the same arguments; returns the tokens that the clip changes,
            `(low, high)`, each `(N, C)`.
        paper (`str`, *optional*), arxiv (`str`, *optional*): Title and arXiv number of its source.
        aggregation (`str`): Its default `loss_aggregation`.
        fixed_aggregation (`bool`): Whether `loss_aggregation` must keep this default.
        caps_ratio (`bool`): Whether `epsilon_high` is the largest ratio itself (default 5.0) rather than the distance
            of the upper clip from 1 (default `epsilon`).
        takes_delta (`bool`): Whether `delta` bounds its ratio.
        takes_token_weights (`bool`): Whether `token_loss` itself uses `token_weights`, which otherwise multiply it.
        needs_advantage (`bool`): Whether loss and gradient are 0 where the advantage is; not assumed of custom losses.
    """

    token_loss: TokenLoss
    label: str
    summary: str = ""
    clipped: Callable[[LossInputs, LossSettings], tuple[Tensor, Tensor]] | None = None
    paper: str | None = None
    arxiv: str | None = None
    aggregation: str = "sequence"
    fixed_aggregation: bool = False
    caps_ratio: bool = False
    takes_delta: bool = False
    takes_token_weights: bool = False
    needs_advantage: bool = False


# CISPO


def cispo_token_loss(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, epsilon_high: float | None = None
) -> Tensor:
    """The CISPO loss of each token, `-(clamp(ratio, max=epsilon_high) * A * logp)` with a constant weight.

    Unlike a clipped surrogate, it keeps the gradient of every token and bounds only its weight
    ([MiniMax-M1](https://arxiv.org/abs/2506.13585)).

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Advantage per completion or per token.
        epsilon_high (`float`, *optional*): Largest weight. Default: 5.0.

    Returns:
        `Tensor` of shape `(N, C)`.
    """
    upper = resolve_epsilon_high("cispo", epsilon_high=epsilon_high)
    return _weighted_logps(logps - old_logps, logps, _per_token(advantages, logps), upper)


def _weighted_logps(log_ratio: Tensor, logps: Tensor, advantages: Tensor, upper: float) -> Tensor:
    weight = bounded_exp(log_ratio.detach()).clamp(max=upper)
    return -(weight * advantages * logps)


def _cispo(inputs: LossInputs, settings: LossSettings) -> Tensor:
    return _weighted_logps(inputs.log_ratio, inputs.logps, inputs.advantages, settings.upper_clip)


@torch.no_grad()
def _capped(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    ratio = bounded_exp(inputs.log_ratio)
    return torch.zeros_like(ratio), ratio > settings.upper_clip


# GRPO


def grpo_token_loss(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, epsilon: float = 0.2, epsilon_high: float | None = None
) -> Tensor:
    """The clipped surrogate of each token, `-min(ratio * A, clamp(ratio, 1 - epsilon, 1 + epsilon_high) * A)`.

    The loss of [PPO](https://arxiv.org/abs/1707.06347) and [GRPO](https://arxiv.org/abs/2402.03300); a separate
    `epsilon_high` is [DAPO](https://arxiv.org/abs/2503.14476)'s.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probabilities under the policy.
        old_logps (`Tensor` of shape `(N, C)`): Log-probabilities at sampling.
        advantages (`Tensor` of shape `(N,)` or `(N, C)`): Advantage per completion or per token.
        epsilon (`float`, *optional*, defaults to 0.2): Distance of the lower clip from 1.
        epsilon_high (`float`, *optional*): Distance of the upper clip from 1. Default: `epsilon`.

    Returns:
        `Tensor` of shape `(N, C)`.
    """
    upper = 1 + resolve_epsilon_high("grpo", epsilon, epsilon_high)
    return _clipped_surrogate(logps - old_logps, _per_token(advantages, logps), 1 - epsilon, upper)


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, lower: float, upper: float, delta: float | None = None
) -> Tensor:
    ratio = bounded_exp(log_ratio)
    clipped = ratio.clamp(lower, upper)
    if delta is not None:
        ratio = ratio.clamp(max=delta)
    return -torch.min(ratio * advantages, clipped * advantages)


def _grpo(inputs: LossInputs, settings: LossSettings) -> Tensor:
    lower, upper = 1 - settings.epsilon, 1 + settings.upper_clip
    return _clipped_surrogate(inputs.log_ratio, inputs.advantages, lower, upper, settings.delta)


@torch.no_grad()
def _clip_decides(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The tokens where the clip makes the objective smaller; elsewhere it changes nothing."""
    ratio = bounded_exp(inputs.log_ratio)
    low = (ratio < 1 - settings.epsilon) & (inputs.advantages < 0)
    high = (ratio > 1 + settings.upper_clip) & (inputs.advantages > 0)
    return low, high


# Soft gates in place of clips


def _sapo(inputs: LossInputs, settings: LossSettings) -> Tensor:
    return sapo_token_loss(
        inputs.log_ratio, inputs.advantages, settings.sapo_temperature_pos, settings.sapo_temperature_neg
    )


def _vespo(inputs: LossInputs, settings: LossSettings) -> Tensor:
    weights = vespo_weights(
        inputs,
        positive=(settings.vespo_k_pos, settings.vespo_lambda_pos),
        negative=(settings.vespo_k_neg, settings.vespo_lambda_neg),
    )
    return -(weights * inputs.advantages * inputs.logps)


def _per_token(advantages: Tensor, logps: Tensor) -> Tensor:
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(logps)
    require_same_shape(logps, advantages=advantages)
    return advantages


# The table

_GRPO = Objective(
    _grpo,
    "GRPO",
    "clipped objective",
    clipped=_clip_decides,
    paper="DeepSeekMath",
    arxiv="2402.03300",
    takes_delta=True,
    needs_advantage=True,
)
OBJECTIVES: dict[str, Objective] = {
    "cispo": Objective(
        _cispo,
        "CISPO",
        "clipped, detached importance weight",
        clipped=_capped,
        paper="MiniMax-M1",
        arxiv="2506.13585",
        caps_ratio=True,
        needs_advantage=True,
    ),
    "grpo": _GRPO,
    "dr_grpo": replace(
        _GRPO,
        label="Dr-GRPO",
        paper="Understanding R1-Zero-Like Training",
        arxiv="2503.20783",
        aggregation="constant",
        fixed_aggregation=True,
    ),
    "dapo": replace(
        _GRPO,
        label="DAPO",
        paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        arxiv="2503.14476",
        aggregation="token",
        fixed_aggregation=True,
    ),
    "bnpo": replace(_GRPO, aggregation="local_token", fixed_aggregation=True),
    "luspo": replace(
        _GRPO,
        label="LUSPO",
        paper="Length-Unbiased Sequence Policy Optimization",
        arxiv="2602.05261",
        aggregation="sequence_sum",
        fixed_aggregation=True,
    ),
    "sapo": Objective(
        _sapo,
        "SAPO",
        "a smooth gate in place of the clip",
        paper="Soft Adaptive Policy Optimization",
        arxiv="2511.20347",
        needs_advantage=True,
    ),
    "vespo": Objective(
        _vespo,
        "VESPO",
        "detached weight of the whole completion's ratio",
        paper="VESPO: Variational Sequence-Level Soft Policy Optimization",
        arxiv="2602.10693",
        aggregation="token",
        takes_token_weights=True,
        needs_advantage=True,
    ),
}
LOSS_TYPES = tuple(OBJECTIVES)


def resolve_loss_type(loss_type: "str | Objective", loss_aggregation: str | None = None) -> tuple[Objective, str]:
    """The objective and the aggregation that a loss type stands for.

    Args:
        loss_type (`str` or [`Objective`]): One of `LOSS_TYPES`, or an objective itself.
        loss_aggregation (`str`, *optional*): The user's setting. Default: the aggregation of the loss type.

    Returns:
        `(objective, aggregation)`.

    Raises:
        ValueError: If the loss type is unknown, or has a fixed aggregation that differs from the one set.
    """
    objective = OBJECTIVES.get(loss_type) if isinstance(loss_type, str) else loss_type
    if objective is None:
        raise ValueError(f"`loss_type` must be one of {', '.join(LOSS_TYPES)}, got {loss_type!r}.")
    if objective.fixed_aggregation and loss_aggregation not in (None, objective.aggregation):
        free = next((name for name, row in OBJECTIVES.items() if _same_but_free(row, objective)), None)
        remedy = f", or use `loss_type`={free!r} with it" if free else ""
        name = loss_type if isinstance(loss_type, str) else objective.label
        raise ValueError(
            f"`loss_type`={name!r} has `loss_aggregation`={objective.aggregation!r}, but `loss_aggregation` is "
            f"{loss_aggregation!r}. Leave it unset{remedy}."
        )
    return objective, loss_aggregation or objective.aggregation


def _same_but_free(row: Objective, objective: Objective) -> bool:
    return row.token_loss is objective.token_loss and not row.fixed_aggregation


def resolve_epsilon_high(
    loss_type: "str | Objective", epsilon: float = 0.2, epsilon_high: float | None = None
) -> float:
    """The effective `epsilon_high`, in the convention of the loss type.

    Args:
        loss_type (`str` or [`Objective`]): If it caps the ratio, as `"cispo"` does, `epsilon_high` is the largest
            ratio itself (default 5.0). If it clips the ratio, as `"grpo"` does, `epsilon_high` is the distance of the
            upper clip from 1 (default `epsilon`).
        epsilon (`float`, *optional*, defaults to 0.2): Distance of the lower clip from 1, if the loss clips.
        epsilon_high (`float`, *optional*): The user's setting.

    Returns:
        `float`.

    Raises:
        ValueError: If the loss type is unknown, or `epsilon_high` leaves no ratio to train with.
    """
    objective, _ = resolve_loss_type(loss_type)
    if epsilon_high is None:
        return CISPO_EPSILON_HIGH if objective.caps_ratio else epsilon
    if epsilon_high < 0 or (objective.caps_ratio and epsilon_high == 0):
        raise ValueError(
            f"`epsilon_high`={epsilon_high} leaves no ratio to train with. For cispo it is the largest ratio itself "
            "(such as 5.0), for grpo the distance of the upper clip from 1 (such as 0.28)."
        )
    return epsilon_high
