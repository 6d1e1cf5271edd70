# SPDX-License-Identifier: Apache-2.0
"""The best checkpoint of a run, found again after the run was moved.

The Trainer keeps its path as it was when it was written. After the output folder was moved or copied, or if the path
was relative, the checkpoint of that name beside the resumed one is meant.
"""

import os
from pathlib import Path

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

logger = logging.get_logger(__name__)


def restore_best(state: TrainerState, resumed: str | Path) -> None:
    """Points the state of a resumed run to its best checkpoint; if that is lost, the next best one will be kept.

    Args:
        state (`TrainerState`): As the Trainer has loaded it; changed in place.
        resumed (`str` or `Path`): The checkpoint that the run resumes from.
    """
    recorded = _recorded(resumed)
    if recorded is None:
        return
    name = Path(recorded.replace("\\", "/")).name
    beside = Path(os.path.abspath(resumed)).parent / name
    found = next((path for path in (beside, Path(recorded)) if path.is_dir()), None)
    if found is not None:
        if state.best_model_checkpoint is None:
            logger.warning("The best checkpoint, %s, was found beside the resumed one: %s.", recorded, found)
        state.best_model_checkpoint = str(found)
        return
    logger.warning(
        "The best checkpoint so far, %s (score %s), exists neither there nor beside %s. The best one of what follows "
        "is kept. To keep the earlier one, stop and copy %s there.",
        recorded,
        state.best_metric,
        resumed,
        name,
    )
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def is_same_folder(one: str | Path, other: str | Path) -> bool:
    """Whether two paths, relative or through links, lead to one folder."""
    return os.path.realpath(one) == os.path.realpath(other)


def _recorded(resumed: str | Path) -> str | None:
    path = Path(resumed) / TRAINER_STATE_NAME
    return TrainerState.load_from_json(str(path)).best_model_checkpoint if path.is_file() else None
