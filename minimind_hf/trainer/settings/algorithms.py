# SPDX-License-Identifier: Apache-2.0
"""Losses and advantage estimators by name: a row of the tables, or a function of the user's own by its import path."""

from typing import Any

from ...algorithms import ADVANTAGES, OBJECTIVES, Advantage, Objective
from ...import_paths import ImportPathError, is_import_path, load_object

OTHER_LOSSES_OF_TRL = ("sapo", "luspo", "vespo")


def objective_of(loss_type: str) -> Objective:
    """Returns the objective that `loss_type` names.

    Args:
        loss_type (`str`): A name in `OBJECTIVES`, or the import path of a function (see [`Objective`], `token_loss`)
        or
            of an [`Objective`].

    Raises:
        ValueError: If there is no such loss.
    """
    if loss_type in OTHER_LOSSES_OF_TRL:
        raise ValueError(
            f"loss_type={loss_type!r} is a loss of trl that is not supported here; use one of "
            f"{', '.join(map(repr, OBJECTIVES))}. Of these, 'cispo' bounds the weight of a token softly, as 'sapo' "
            "and 'vespo' do; 'grpo' with importance_sampling_level='sequence' is GSPO, which 'luspo' is made from."
        )
    return _row("loss_type", loss_type, OBJECTIVES, Objective)


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
