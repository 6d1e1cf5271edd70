# SPDX-License-Identifier: Apache-2.0
"""Settings of episodes: several turns with tools or an environment."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...bounds import Bounds, Count, Positive


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_Discount = Annotated[float, Bounds(above=0, at_most=1, remedy="1.0: a later turn counts like the first.")]
_ToolRounds = Annotated[int | None, Bounds(at_least=0, remedy="Unset: until a turn without a call.")]


@dataclass
class AgentSettings:
    """What tools and environments add to the settings of a trainer. See each field's help."""

    max_turns: Count | None = _field(
        None, "Turns of the policy after which an episode ends. Unset: when a turn has no call, or no room is left."
    )
    max_tool_calling_iterations: _ToolRounds = _field(
        None, "trl's name for max_turns - 1: rounds of tool calls in an episode."
    )
    max_turn_length: Count | None = _field(
        None, "Tokens after which one turn is cut, which ends the episode. Unset: only max_completion_length does."
    )
    max_observation_length: Count | None = _field(
        None, "Tokens after which a tool's answer is cut, with a visible mark. Unset: no limit."
    )
    tool_workers: Count = _field(8, "Threads that run tools and environments beside the decoding.")
    tool_timeout: Positive = _field(
        30.0, "Seconds after which a call of a tool is given up; the policy is told that it took too long."
    )
    turn_discount: _Discount = _field(
        1.0, "GRPO: factor per turn of rewards that come later (PPO discounts tokens, by gamma)."
    )

    def settle_turns(self) -> None:
        """Brings `max_turns` and trl's name for it into agreement.

        Raises:
            ValueError: If both are set and differ.
        """
        rounds = self.max_tool_calling_iterations
        if rounds is None:
            return
        if self.max_turns not in (None, rounds + 1):
            raise ValueError(
                f"max_turns ({self.max_turns}) and max_tool_calling_iterations ({rounds}) say the same thing "
                "differently: an episode has one turn more than rounds of calls. Set only one of them."
            )
        self.max_turns = rounds + 1
