# SPDX-License-Identifier: Apache-2.0
"""Settings that choose which prompts are drawn, by what is learned from them."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...bounds import Bounds, Count


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_Floor = Annotated[
    float, Bounds(above=0, at_most=1, remedy="At 0 a prompt that was hopeless once would never return.")
]


@dataclass
class DynamicSamplingSettings:
    """What dynamic sampling and the memory of prompts add to the settings of GRPO. See each field's help."""

    dynamic_sampling: bool = _field(
        False,
        "Put groups whose rewards are all equal aside, since they teach nothing, and draw further prompts in "
        "their place (the filter of DAPO). The objective becomes that of the prompts that are neither solved nor "
        "hopeless; evaluation stays on all.",
    )
    max_resampled: Count | None = _field(
        None,
        "Most further prompts that one process draws for a rollout. When they are used up, groups that were put aside "
        "fill the rest. Unset: three times those of a rollout.",
    )
    prompt_memory: bool = _field(
        False, "Remember how often each prompt was solved, and draw solved and hopeless prompts more rarely."
    )
    prompt_memory_floor: _Floor = _field(
        0.1, "Least probability with which prompt_memory keeps a prompt whose turn it is."
    )
    solved_above: float = _field(0.5, "Reward above which a completion has solved its prompt, for prompt_memory.")
