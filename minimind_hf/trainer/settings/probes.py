# SPDX-License-Identifier: Apache-2.0
"""Settings of probe prompts: a few prompts that a run answers again and again, to see what it changes."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from ...bounds import Bounds, Count


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_Number = Annotated[int, Bounds(at_least=0, remedy="0: none.")]


@dataclass
class ProbeSettings:
    """What probe prompts add to the settings of a trainer. See each field's help."""

    probe_prompts: _Number = _field(
        0,
        "So many prompts, the first of eval_dataset or else of train_dataset, are answered at the start, every "
        "probe_steps steps and at the end, always with the same random numbers; the report shows the answers.",
    )
    probe_steps: Count = _field(100, "Optimizer steps between two answers to the probe prompts.")
