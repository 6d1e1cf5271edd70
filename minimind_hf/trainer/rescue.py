# SPDX-License-Identifier: Apache-2.0
"""A run that cannot go on, because its rollout server is gone, is saved before it ends."""

from pathlib import Path

from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


def save_before_the_end(trainer: Trainer) -> str:
    """Saves a checkpoint of the last finished step; every process calls it.

    Returns:
        `str`: What to do next, for the error that ends the run.
    """
    step = trainer.state.global_step
    if step == 0:
        return "No step was done yet, so nothing was saved."
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
    folder = Path(trainer.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    if trainer.args.save_only_model:
        return f"The model was saved to {folder}; with save_only_model the run cannot be resumed from it."
    return f"A checkpoint was saved: start the server and go on with --resume_from_checkpoint {folder}."
