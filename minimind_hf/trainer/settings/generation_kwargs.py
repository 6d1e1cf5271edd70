# SPDX-License-Identifier: Apache-2.0
"""trl's `generation_kwargs`: settings by the names of transformers' GenerationConfig.

Those that are fields here override the fields, for sampling and scoring alike. Those that say what is done anyway are
accepted. Any other would draw completions from a distribution that they are not scored under, or do nothing.
"""

import json
from typing import Any

_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_completion_length",
}
_DONE_ANYWAY: dict[str, tuple] = {
    "do_sample": (True,),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "use_cache": (True,),
    "min_new_tokens": (0, None),
    "no_repeat_ngram_size": (0, None),
    "typical_p": (1.0, None),
    "suppress_tokens": ([], None),
}
EOS = "eos_token_id"


def resolve_generation_kwargs(args: Any) -> None:
    """Puts the settings of `args.generation_kwargs` where they belong.

    Raises:
        ValueError: If it is not a dictionary, or holds a setting that cannot be honoured.
    """
    given = args.generation_kwargs
    if isinstance(given, str):
        try:
            given = args.generation_kwargs = json.loads(given)
        except json.JSONDecodeError as error:
            raise ValueError(f"generation_kwargs is not a valid JSON object ({error}): {given!r}.") from error
    if given is None:
        return
    if not isinstance(given, dict):
        raise ValueError(f"generation_kwargs must be a dictionary or a JSON object, got {given!r}.")
    for name, value in given.items():
        if name in _FIELDS:
            setattr(args, _FIELDS[name], value)
        elif name == EOS:
            _check_eos(value)
        elif name not in _DONE_ANYWAY or value not in _DONE_ANYWAY[name]:
            raise ValueError(
                f"generation_kwargs has {name}={value!r}, which rollouts cannot honour: completions are drawn from "
                f"the distribution that they are scored under. It may hold {', '.join([*_FIELDS, EOS])}."
            )


def eos_of(args: Any) -> tuple[int, ...] | None:
    """The ids that end a completion according to `generation_kwargs`, if it says so."""
    value = (args.generation_kwargs or {}).get(EOS)
    if value is None:
        return None
    return (value,) if isinstance(value, int) else tuple(sorted(value))


def _check_eos(value: Any) -> None:
    ids = value if isinstance(value, list | tuple) else [value]
    if not ids or not all(isinstance(number, int) and number >= 0 for number in ids):
        raise ValueError(f"generation_kwargs has eos_token_id={value!r}; it must be a token id or a list of them.")
