# SPDX-License-Identifier: Apache-2.0
"""The random choices of a prompt: a pure function of (seed, epoch, index).

No generator is advanced and Python's salted `hash` is not used. Any process, worker or resumed run that asks for the
same prompt gets the same choice, in any order.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_SYSTEM_PROMPTS: tuple[str, ...] = (
    "你是一个乐于助人的助手，请给出准确、清楚的回答。",
    "你是一位知识丰富的助手。不确定的地方请如实说明。",
    "请用简洁的语言回答用户的问题。",
    "你是一名耐心的老师，请把道理讲明白，必要时举例说明。",
    "请先理解用户真正的需求，再给出有条理的回答。",
    "You are a helpful assistant. Answer accurately and clearly.",
    "You are a knowledgeable assistant. Say so when you are not sure.",
    "Answer the user's question in a few plain sentences.",
    "You are a patient teacher. Explain step by step, with an example where it helps.",
    "Work out what the user needs, then give a well-organised answer.",
)


class PromptChoices(NamedTuple):
    """Three independent draws, each uniform over [0, 1).

    Args:
        thinking (`float`): Thinking is on where this is below `thinking_ratio`.
        system (`float`): A system prompt is added where this is below `system_prompt_ratio`.
        system_pick (`float`): Position of the added system prompt, as a share of the list.
    """

    thinking: float
    system: float
    system_pick: float

    def pick(self, options: Sequence[str]) -> str:
        """Returns the option at the position that `system_pick` gives."""
        return options[int(self.system_pick * len(options))]


def prompt_choices(seed: int, epoch: int, index: int) -> PromptChoices:
    """Draws the choices of one prompt.

    Args:
        seed (`int`): Seed of the run.
        epoch (`int`): Number of the pass over the data.
        index (`int`): Row of the prompt in the source data set.

    Returns:
        [`PromptChoices`]: The draws. They do not depend on the ratios, so a larger ratio only turns more prompts on.
    """
    key = f"{int(seed)}/{int(epoch)}/{int(index)}".encode()
    words = struct.unpack("<3Q", hashlib.blake2b(key, digest_size=24, person=b"minimind-prompt").digest())
    # The upper 53 bits are exact in a double below 1; all 64 could round up to 1.
    return PromptChoices(*((word >> 11) * 2.0**-53 for word in words))
