# SPDX-License-Identifier: Apache-2.0
"""The names of losses: which objective each has, how it is aggregated, and what `epsilon_high` means to it.

A name is an objective (`cispo` or `grpo`) with an aggregation. That of `cispo` and `grpo` can be chosen; `dr_grpo`,
`dapo` and `bnpo` are the objective `grpo` with the aggregation of their papers.
"""

OBJECTIVES = ("cispo", "grpo")
_COMBINATIONS = {
    "cispo": ("cispo", "sequence"),
    "grpo": ("grpo", "sequence"),
    "dr_grpo": ("grpo", "constant"),  # https://arxiv.org/abs/2503.20783
    "dapo": ("grpo", "token"),  # https://arxiv.org/abs/2503.14476
    "bnpo": ("grpo", "local_token"),
}
LOSS_TYPES = tuple(_COMBINATIONS)
CISPO_EPSILON_HIGH = 5.0


def resolve_loss_type(loss_type: str, loss_aggregation: str | None = None) -> tuple[str, str]:
    """The objective and the aggregation that a loss type stands for.

    Args:
        loss_type (`str`): One of `LOSS_TYPES`.
        loss_aggregation (`str`, *optional*): What the user set; unset, that of the loss type.

    Returns:
        `(objective, aggregation)`.

    Raises:
        ValueError: If the loss type is unknown, or means another aggregation than the one that was set.
    """
    if loss_type not in _COMBINATIONS:
        raise ValueError(f"`loss_type` must be one of {', '.join(LOSS_TYPES)}, got {loss_type!r}.")
    objective, own = _COMBINATIONS[loss_type]
    if loss_type not in OBJECTIVES and loss_aggregation not in (None, own):
        raise ValueError(
            f"`loss_type`={loss_type!r} is the {objective} objective with `loss_aggregation`={own!r}, but "
            f"`loss_aggregation` is {loss_aggregation!r}. Leave it unset, or use `loss_type`={objective!r} with it."
        )
    return objective, loss_aggregation or own


def resolve_epsilon_high(loss_type: str, epsilon: float = 0.2, epsilon_high: float | None = None) -> float:
    """The `epsilon_high` in force, in the convention of the loss type.

    Args:
        loss_type (`str`): `"cispo"`, where `epsilon_high` is the largest ratio itself (5.0 when unset), or one that
            has the objective `"grpo"`, where it is the distance of the upper clip from 1 (`epsilon` when unset).
        epsilon (`float`, *optional*, defaults to 0.2): Distance of the lower clip from 1, for `"grpo"`.
        epsilon_high (`float`, *optional*): What the user set.

    Returns:
        `float`.

    Raises:
        ValueError: If the loss type is unknown or `epsilon_high` cannot be meant.
    """
    objective, _ = resolve_loss_type(loss_type)
    if epsilon_high is None:
        return CISPO_EPSILON_HIGH if objective == "cispo" else epsilon
    if epsilon_high < 0 or (objective == "cispo" and epsilon_high == 0):
        raise ValueError(
            f"`epsilon_high`={epsilon_high} leaves no ratio to train with. For cispo it is the largest ratio itself "
            "(such as 5.0), for grpo the distance of the upper clip from 1 (such as 0.28)."
        )
    return epsilon_high
