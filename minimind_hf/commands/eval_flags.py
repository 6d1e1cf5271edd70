# SPDX-License-Identifier: Apache-2.0
"""The flags of `minimind-hf eval`, besides those of `evaluation/settings.py`."""

from dataclasses import dataclass
from pathlib import Path

from ..flags import flag

NUM_PROMPTS = 64


@dataclass
class EvalFlags:
    """Flags of the command, besides those of the models, their answers and episodes."""

    dataset_name: str | None = flag(
        None, "prompts, as for training; an environment may do without and write them all", metavar="FILE|NAME"
    )
    dataset_config: str | None = flag(None, "configuration of the data set", metavar="NAME")
    split: str = flag("train", "split, e.g. 'test' or 'train[:200]' (default %(default)s)")
    question_column: str | None = flag(None, "column whose texts become the user turn", metavar="NAME")
    num_prompts: int | None = flag(
        None, f"without --dataset_name: prompts that the environment writes (default {NUM_PROMPTS})", metavar="N"
    )
    tools: list[str] = flag(list, "functions that the models may call: FILE.py:name or module:name", metavar="TOOL")
    environment: str | None = flag(
        None, "environment of the episodes: FILE.py:Class, module:Class or textarena:NAME", metavar="CLASS"
    )
    reward_funcs: list[str] = flag(list, "as for training: names, paths, reward models", metavar="REWARD")
    reward_weights: list[float] | None = flag(None, "one weight per reward (default: 1)", metavar="W")
    exact_match: str | None = flag(
        None, "reward of 1 if the answer equals the value in this column", nargs="?", const="answer", metavar="COLUMN"
    )
    changed: int = flag(
        3,
        "answers to show whose reward rose most, and fell most, from the first model (default %(default)s)",
        metavar="N",
    )
    output: Path | None = flag(None, "write results.json and the completions to this folder", metavar="FOLDER")

    def __post_init__(self):
        if not self.reward_funcs and not self.exact_match and self.environment is None:
            raise ValueError(
                "Nothing to evaluate with: set --reward_funcs, --exact_match COLUMN, or an --environment that rewards."
            )
        if self.dataset_name is None and self.environment is None:
            raise ValueError("There are no prompts: set --dataset_name, or an --environment that writes them.")
        if self.changed < 0:
            raise ValueError(f"changed is {self.changed}; give the number of answers to show, 0 for none.")
        if self.num_prompts is not None and self.dataset_name is not None:
            raise ValueError(
                f"num_prompts is {self.num_prompts}, but the prompts come from {self.dataset_name}. Set it only where "
                "an environment writes all prompts."
            )
        if self.num_prompts is not None and self.num_prompts < 1:
            raise ValueError(f"num_prompts is {self.num_prompts}, but it must be at least 1.")
