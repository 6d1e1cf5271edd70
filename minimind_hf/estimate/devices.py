# SPDX-License-Identifier: Apache-2.0
"""Which CUDA devices a run fits, by their memory: for one model, and as a table of models that people train.

A run that does not fit with a whole micro-batch can be computed in smaller passes (`max_tokens_per_microbatch` of
GRPO, `mini_batch_size` of PPO), with the same result. So the table has the largest number of completions in one pass,
and "no" where not even one fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .memory import Setting, Shape, adapter_parameters, estimate, shape_of

DEVICES = (8, 12, 16, 24, 40, 80, 141)  # GB, as devices are sold
_FREE_AT_THE_START = 0.97  # of it: the driver and a screen take the rest
MOST_ROWS = 96  # more at a time are not faster
_RANK = 16


@dataclass(frozen=True)
class Course:
    """One way to train: a row of the table."""

    name: str
    algorithm: str
    lora_r: int | None = None


COURSES = (Course("GRPO", "grpo"), Course("PPO", "ppo"), Course("LoRA", "grpo", _RANK))


def _minimind(
    hidden: int, layers: int, intermediate: int, kv_heads: int, use_moe: bool = False
) -> Callable[[], Shape]:
    def shape() -> Shape:
        from ..models import MiniMindConfig

        return shape_of(
            MiniMindConfig(
                hidden_size=hidden,
                intermediate_size=intermediate,
                num_hidden_layers=layers,
                num_attention_heads=8,
                num_key_value_heads=kv_heads,
                use_moe=use_moe,
            )
        )

    return shape


def _qwen3(hidden: int, intermediate: int) -> Callable[[], Shape]:
    def shape() -> Shape:
        from transformers import Qwen3Config

        sizes = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
        config = Qwen3Config(hidden_size=hidden, intermediate_size=intermediate, tie_word_embeddings=True, **sizes)
        return shape_of(config)

    return shape


KNOWN_MODELS: dict[str, Callable[[], Shape]] = {
    "MiniMind 26M": _minimind(512, 8, 1408, 2),
    "MiniMind 64M": _minimind(768, 8, 2432, 4),
    "MiniMind 104M": _minimind(768, 16, 2048, 2),
    "MiniMind 200M (mixture of experts)": _minimind(768, 8, 2432, 4, use_moe=True),
    "Qwen3 0.6B": _qwen3(1024, 3072),
    "Qwen3 1.7B": _qwen3(2048, 6144),
}


def usable(device: int) -> int:
    """Bytes of a device of this many GB."""
    return int(_FREE_AT_THE_START * device * 2**30)


def fitting_devices(total: int) -> list[int]:
    """The devices, by their GB, that have room for this many bytes."""
    return [device for device in DEVICES if total <= usable(device)]


def most_rows(shape: Shape, setting: Setting, device: int) -> int:
    """The most completions that fit into one pass of the update; 0 if not even one does."""

    def fits(rows: int) -> bool:
        return estimate(shape, _in_passes_of(rows, setting)).total <= usable(device)

    fitting, beyond = 0, MOST_ROWS + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if fits(middle) else (fitting, middle)
    return fitting


def _in_passes_of(rows: int, setting: Setting) -> Setting:
    """The setting with this many completions in a pass: of a mini-batch for PPO, of a larger micro-batch for GRPO,
    whose gradients of earlier passes are there already."""
    if setting.algorithm == "ppo":
        return replace(setting, rows=rows)
    prompts = -(-rows // setting.group)
    return replace(setting, rows=rows + setting.rows, max_tokens=rows * setting.completion + prompts * setting.prompt)


def fitting_table(setting: Setting, models: dict[str, Callable[[], Shape]] = KNOWN_MODELS) -> list[tuple[str, ...]]:
    """What fits where.

    Args:
        setting ([`Setting`]): Lengths, precision, and how many completions are decoded at a time; the algorithm, its
            group and adapters are those of each row.
        models (`dict[str, Callable]`): Shapes by name.

    Returns:
        `list[tuple[str, ...]]`: For each model and course a row: both names, and a cell for each of [`DEVICES`].
    """
    rows = []
    for name, make_shape in models.items():
        shape = make_shape()
        for course in COURSES:
            trained = None if course.lora_r is None else adapter_parameters(shape, course.lora_r)
            group = 1 if course.algorithm == "ppo" else setting.group
            of_course = replace(setting, algorithm=course.algorithm, trained=trained, group=group)
            rows.append((name, course.name, *(_cell(most_rows(shape, of_course, device)) for device in DEVICES)))
    return rows


def _cell(rows: int) -> str:
    if rows == 0:
        return "no"
    return f"{rows}+" if rows == MOST_ROWS else str(rows)
