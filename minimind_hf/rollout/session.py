# SPDX-License-Identifier: Apache-2.0
"""One episode as a rollout engine sees it: a prompt, and somebody who answers each turn of the policy in token ids."""

from typing import Any, Protocol


class Session(Protocol):
    """An episode that an engine plays, see `RolloutEngine.converse`.

    Attributes:
        prompt_ids (`list[int]`): Tokens before the first turn. Sessions of one group may have equal ones.
        row (`dict`): The row of the data set that the episode belongs to.
    """

    prompt_ids: list[int]
    row: dict[str, Any]

    def observe(self, ids: list[int], finish_reason: str) -> list[int] | None:
        """Answers a turn of the policy. Called once for every turn, the last one included; may block.

        Args:
            ids (`list[int]`): The tokens of the turn, its EOS included.
            finish_reason (`str`): `"stop"` if an EOS ended the turn, `"length"` if it was cut. A cut turn ends the
                episode, whatever is returned.

        Returns:
            `list[int]`, *optional*: Tokens to append before the next turn, up to and including the generation prompt;
            `None` if the episode has ended.
        """
