# SPDX-License-Identifier: Apache-2.0
"""Says, once a process, that prompts are rendered with thinking: their text differs, and so does the task."""

from transformers.utils import logging

from .prompts import PromptDataset

logger = logging.get_logger(__name__)


def say_how_many_think(prompts: PromptDataset, thinking_ratio: float) -> None:
    """Warns where `thinking_ratio` decides how prompts read; equal messages are given once.

    Args:
        prompts ([`PromptDataset`]): The prompts.
        thinking_ratio (`float`): Their share that is rendered with thinking.
    """
    name = prompts.thinking_argument
    if name is None or thinking_ratio == 0:
        return
    logger.warning_once(
        f"thinking_ratio={thinking_ratio:g}: {thinking_ratio:.0%} of the prompts are rendered with thinking on "
        f"({name}=True in the chat template), so that their answers are to begin with a thought. A model that was "
        "trained without thoughts does another task then; thinking_ratio=0 renders none."
    )
