# SPDX-License-Identifier: Apache-2.0
"""How models answer and play in an evaluation: the flags of `minimind-hf eval` that shape its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..bounds import Bounds, Count, Positive, Share, check_settings
from ..flags import flag
from ..reports.record import read_settings

_THINKING_RATIO = 0.9


@dataclass(frozen=True)
class EvalSettings:
    """Settings of the answers; each one is a flag of `minimind-hf eval`.

    Args:
        samples (`int`): Completions per prompt.
        pass_at (`list[int]`): For each number `k`, the share of prompts that `k` of the completions would solve.
        solved_at (`float`): A completion is solved if its reward, the weighted sum, is at least this.
        temperature (`float`): Sampling temperature; 0 takes the most likely token.
        max_completion_length (`int`): Maximum tokens per completion; of an episode, answers included.
        thinking_ratio (`float`): Share of the prompts that open a thought.
        seed (`int`): Seed of the sampling and of the choice of thinking prompts.
        batch_size (`int`): Prompts decoded at a time.

    Raises:
        ValueError: If a value is out of bounds, or `pass_at` asks for more completions than `samples`.
    """

    samples: Count = flag(1, "completions per prompt (default %(default)s)", metavar="N")
    pass_at: list[int] = flag(list, "estimate pass@K from the samples, for each K, e.g. 1 4 8", metavar="K")
    solved_at: float = flag(
        1.0, "a completion is solved if its reward is at least this (default %(default)s)", metavar="REWARD"
    )
    temperature: Annotated[float, Bounds(at_least=0, remedy="0 always takes the most likely token.")] = flag(
        0.8, "0: always the most likely token (default %(default)s)", metavar="T"
    )
    max_completion_length: Count = flag(256, "maximum tokens per completion (default %(default)s)", metavar="N")
    thinking_ratio: Share = flag(
        _THINKING_RATIO,
        "share of the prompts that think (default: as in training, from the run.json of the models; else "
        f"{_THINKING_RATIO})",
        metavar="P",
    )
    seed: int = flag(0, "sampling seed (default %(default)s)", metavar="N")
    batch_size: Count = flag(64, "prompts decoded at a time (default %(default)s)", metavar="N")

    def __post_init__(self):
        check_settings(self)
        for k in self.pass_at:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    f"pass_at has {k}, but it must be from 1 to samples ({self.samples}): no more completions can be "
                    "chosen than are drawn. Raise --samples, or leave it out."
                )


@dataclass(frozen=True)
class EpisodeSettings:
    """Settings of episodes, by the names of training; each one is a flag of `minimind-hf eval`.

    Args:
        max_turns (`int`, *optional*), max_turn_length (`int`, *optional*), max_observation_length (`int`, *optional*),
        tool_workers (`int`), tool_timeout (`float`): See `AgentSettings`.

    Raises:
        ValueError: If a value is out of bounds.
    """

    max_turns: Count | None = flag(
        None, "turns after which an episode ends (default: when a turn has no call)", metavar="N"
    )
    max_turn_length: Count | None = flag(
        None, "tokens after which one turn is cut (default: those of --max_completion_length)", metavar="N"
    )
    max_observation_length: Count | None = flag(
        None, "tokens after which the answer of a tool is cut (default: no limit)", metavar="N"
    )
    tool_workers: Count = flag(8, "threads that run tools and environments (default %(default)s)", metavar="N")
    tool_timeout: Positive = flag(
        30.0, "seconds after which a call of a tool is given up (default %(default)s)", metavar="S"
    )

    def __post_init__(self):
        check_settings(self)


def thinking_ratio_of(models: Sequence[str]) -> float:
    """Returns the share of thinking prompts in the training of the models, from the `run.json` of their runs.

    Args:
        models (`Sequence[str]`): Folders (of a run, or inside it) or names; models without a run are ignored.

    Returns:
        `float`: One share, since all models answer the same prompts; the default if no run is found.

    Raises:
        ValueError: If the runs differ.
    """
    found = {model: ratio for model in models if (ratio := _trained_ratio(Path(model))) is not None}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{model} {ratio:g}" for model, ratio in found.items())
        raise ValueError(
            f"The models were trained with different shares of thinking prompts ({told}), but must be compared on the "
            "same prompts. Choose the share with --thinking_ratio P."
        )
    return next(iter(found.values()), EvalSettings.thinking_ratio)


def _trained_ratio(model: Path) -> float | None:
    """Reads the share from the run whose folder is the model or its parent (for checkpoints)."""
    folders = (model, model.resolve().parent) if model.is_dir() else ()
    ratios = (read_settings(folder).get("thinking_ratio") for folder in folders)
    return next((ratio for ratio in ratios if ratio is not None), None)
