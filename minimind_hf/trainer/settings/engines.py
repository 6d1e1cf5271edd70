# SPDX-License-Identifier: Apache-2.0
"""Settings of the rollout engines. One that the engine in use would ignore is refused, not ignored."""

import argparse
from dataclasses import dataclass, field
from typing import Annotated, Any

from ...bounds import Bounds, Count, Positive
from ...default_sizes import MAX_BATCH_ROWS
from ...forward.proof import MODES
from ...rollout import WEIGHT_SYNCS
from ...rollout.torch.engine import DTYPES as ROLLOUT_DTYPES
from ...rollout.torch.engine import PATHS as TORCH_ENGINE_PATHS
from ...rollout.torch.speculating import SPECULATIONS

ROLLOUT_ENGINES = ("torch", "sglang")

ENGINE_SETTINGS = {
    "torch": ("max_batch_rows", "rollout_dtype", "torch_engine_path", "speculation"),
    "sglang": (
        "sglang_base_url",
        "server_timeout",
        "rollout_weight_sync",
        "rollout_sync_dir",
        "sglang_enable_sleep_mode",
    ),
}
_ADDRESS = "http://localhost:30000"
_HINTS = {
    "rollout_dtype": " An SGLang server computes in the --dtype that it was started with.",
    "sglang_base_url": f" As flags: --rollout_engine sglang --sglang_base_url {_ADDRESS}.",
}


class ReplaceDefault(argparse.Action):
    """A flag of several values that may be repeated, and that replaces its default, for example from a yaml file."""

    def __call__(self, parser, namespace, values, option_string=None):
        found = getattr(namespace, self.dest)
        earlier = [] if found is self.default else found
        setattr(namespace, self.dest, [*earlier, *values])


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_Engine = Annotated[
    str, Bounds(choices=ROLLOUT_ENGINES, remedy="Pass a custom engine to the trainer: rollout_engine=MyEngine().")
]


@dataclass
class EngineSettings:
    """What rollout engines add to the settings of a trainer. See each field's help."""

    rollout_engine: _Engine = _field(
        "torch", "What draws the completions: 'torch' decodes in this process, 'sglang' asks servers that you run."
    )
    max_batch_rows: Count = _field(MAX_BATCH_ROWS, "Completions that the torch engine decodes at a time.")
    rollout_dtype: Annotated[str | None, Bounds(choices=tuple(ROLLOUT_DTYPES))] = _field(
        None,
        "'float32' or 'bfloat16' for the torch engine to decode in; the ratio absorbs the difference. Unset: bfloat16 "
        "with bf16=True, otherwise the model's own.",
    )
    torch_engine_path: Annotated[str, Bounds(choices=TORCH_ENGINE_PATHS)] = _field(
        "auto",
        "'fast' decodes MiniMind-, Qwen- and Llama-shaped models on packed weights, 'graph' replays the model's own "
        "forward as CUDA graphs (an error where they do not fit), 'general' calls it token by token. 'auto': 'fast' "
        "on a CPU and 'graph' on CUDA where they fit, otherwise 'general'.",
    )
    speculation: Annotated[str | None, Bounds(choices=SPECULATIONS)] = _field(
        None,
        "'self' guesses what a completion says next from its prompt, its siblings and earlier epochs, and the torch "
        "engine decodes several tokens at once where that pays. The same tokens are drawn. Unset: off.",
    )
    verify_fast_paths: Annotated[str, Bounds(choices=MODES)] = _field(
        "first",
        "Compare fast paths of rollout and update with the plain ones on the run's own tokens, and take the plain "
        "ones if they differ: 'first' at the first rollout on another device than a CPU, 'always' at every rollout "
        "and on CPUs, 'off' never.",
    )

    # Rollout servers
    sglang_base_url: list[str] | None = field(
        default=None,
        metadata={
            "help": "The SGLang servers, such as http://localhost:30000; each gets a share of the prompts. Keys come "
            "from the environment: SGLANG_API_KEY, SGLANG_ADMIN_API_KEY.",
            "action": ReplaceDefault,  # the flag may be repeated
        },
    )
    server_timeout: Positive = _field(
        300.0,
        "Seconds to wait for a server that fails or does not answer, before a checkpoint is saved and the run ends.",
    )
    rollout_weight_sync: Annotated[str, Bounds(choices=WEIGHT_SYNCS)] = _field(
        "disk", "How servers get weights: by a folder they can see ('disk'), or broadcast to them ('distributed')."
    )
    rollout_sync_dir: str | None = _field(
        None,
        "Folder of 'disk', for this run alone, which servers see under the same path; /dev/shm/NAME spares the disk. "
        "Unset: OUTPUT_DIR/_rollout_weights.",
    )
    sglang_enable_sleep_mode: bool = _field(
        False,
        "For a server on the trainer's own GPU: it gives up its weights and its cache during the update, and gets "
        "them back with the next weights. Start it with --enable-memory-saver.",
    )
    sync_every: Count = _field(
        1, "Rollouts from one set of weights. Above 1, servers are sent weights less often and sample from older ones."
    )


def check_engine_settings(args: Any) -> None:
    """Refuses settings of an engine that is not in use, and a folder for weights that are not sent by a folder.

    Raises:
        ValueError: With the setting, its value and what to do.
    """
    chosen = args.rollout_engine
    for engine in ENGINE_SETTINGS:
        if engine != chosen:
            remedy = f"or choose rollout_engine={engine!r}"
            _refuse_changed(args, engine, f"rollout_engine is {chosen!r}, which would ignore it", remedy)
    if chosen == "sglang" and not args.sglang_base_url:
        raise ValueError(
            f"rollout_engine is 'sglang', but sglang_base_url names no server: give both (--rollout_engine sglang "
            f"--sglang_base_url {_ADDRESS}) or neither."
        )
    if chosen == "sglang":
        _refuse_untold(args)
    if args.rollout_weight_sync != "disk" and args.rollout_sync_dir is not None:
        raise ValueError(
            f"rollout_sync_dir={args.rollout_sync_dir!r} is the folder of rollout_weight_sync='disk', but "
            f"rollout_weight_sync is {args.rollout_weight_sync!r}, which needs none. Leave rollout_sync_dir unset."
        )


def _refuse_untold(args: Any) -> None:
    """Refuses truncation whose kept tokens an SGLang server does not tell."""
    for name, off in (("top_p", (1.0,)), ("min_p", (None, 0))):
        value = getattr(args, name)
        if value not in off:
            raise ValueError(
                f"{name}={value!r} with rollout_engine='sglang': a server does not tell which tokens it kept, and "
                f"they must be scored over these. Leave {name} at {off[0]!r} and set top_k, or use "
                "rollout_engine='torch'."
            )


def check_own_engine(args: Any, engine: object) -> None:
    """Refuses settings of the engines that have names, where an engine object is passed to the trainer.

    Raises:
        ValueError: With the setting, its value and what to do.
    """
    name = type(engine).__name__
    if args.rollout_engine != "torch":
        raise ValueError(
            f"rollout_engine is {args.rollout_engine!r} in the config, and a {name} was passed to the trainer as "
            "rollout_engine, but only one of them can be used. Remove it and its settings from the config, or do not "
            "pass an object."
        )
    _refuse_changed(args, "torch", f"the engine is the {name} that was passed", "or set it on that engine")


def _refuse_changed(args: Any, engine: str, reason: str, remedy: str) -> None:
    for name in ENGINE_SETTINGS[engine]:
        value, default = getattr(args, name), type(args).__dataclass_fields__[name].default
        if value != default:
            raise ValueError(
                f"{name}={value!r} is a setting of the {engine} engine, but {reason}. Leave {name} at {default!r}, "
                f"{remedy}.{_HINTS.get(name, '')}"
            )
