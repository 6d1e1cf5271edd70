# SPDX-License-Identifier: Apache-2.0
"""Losses and advantage estimators by name: a row of the tables, or a function of the user's own by its import path."""

from typing import Any

from ...algorithms import ADVANTAGES, OBJECTIVES, Advantage, Objective
from ...import_paths import ImportPathError, is_import_path, load_object

_LEVEL = "importance_sampling_level"


def objective_of(loss_type: str) -> Objective:
    """Returns the objective that `loss_type` names.

    Args:
        loss_type (`str`): A name in `OBJECTIVES`, or the import path of a function (see [`Objective`], `token_loss`)
            or of an [`Objective`].

    Raises:
        ValueError: If there is no such loss.
    """
    return _row("loss_type", loss_type, OBJECTIVES, Objective)


def level_notices(loss_type: str, level: str, aggregation: str) -> list[str]:
    """What trl warns of: levels of importance ratios that a loss was not meant for.

    Args:
        loss_type (`str`), level (`str`), aggregation (`str`): `loss_type`, `importance_sampling_level` and
            `loss_aggregation`, settled.
    """
    if loss_type == "luspo" and level != "sequence":
        return [f"loss_type='luspo' with {_LEVEL}={level!r}: its paper has one ratio per completion. Set 'sequence'."]
    if loss_type == "vespo" and level != "token":
        return [
            f"loss_type='vespo' with {_LEVEL}={level!r}: it takes the ratio of the whole completion anyway, so the "
            "level matters for use_bias_correction_kl alone. Leave it at 'token'."
        ]
    if level == "sequence" and loss_type not in ("luspo", "vespo") and aggregation not in ("sequence", "sequence_sum"):
        return [
            f"{_LEVEL}='sequence' with loss_type={loss_type!r} and loss_aggregation={aggregation!r}: the ratio is one "
            "per completion, but tokens are summed, so long completions weigh more. GSPO has loss_type='grpo', with "
            "loss_aggregation='sequence'."
        ]
    return []


def advantage_of(estimator: str) -> Advantage:
    """Returns the estimator that `advantage_estimator` names.

    Args:
        estimator (`str`): A name in `ADVANTAGES`, or the import path of a function (see [`Advantage`], `estimate`) or
            of an [`Advantage`].

    Raises:
        ValueError: If there is no such estimator.
    """
    return _row("advantage_estimator", estimator, ADVANTAGES, Advantage)


def _row(setting: str, value: Any, table: dict[str, Any], kind: type) -> Any:
    if value in table:
        return table[value]
    if not is_import_path(value):
        raise ValueError(
            f"{setting} must be one of {', '.join(map(repr, table))}, or the import path of your own, "
            f"'file.py:name' or 'module:name', got {value!r}."
        )
    try:
        found = load_object(value)
    except ImportPathError as error:
        raise ValueError(f"{setting}={error}") from error
    if isinstance(found, kind):
        return found
    if isinstance(found, type) or not callable(found):
        raise ValueError(f"{setting}={value!r} is a {type(found).__name__}. Name a function, or an {kind.__name__}.")
    return kind(found, label=getattr(found, "__name__", type(found).__name__))
