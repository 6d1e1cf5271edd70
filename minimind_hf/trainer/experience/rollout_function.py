# SPDX-License-Identifier: Apache-2.0
"""trl's `rollout_func`: a function of the user that draws the completions, in place of an engine.

It gets the prompt of every completion and the trainer, and returns a dictionary with `prompt_ids`, `completion_ids`
and `logprobs`; with `env_mask` (1 for tokens of the policy) if something else wrote tokens; with `kept`, the sets that
tokens were drawn from (see [`Rollout`]), if sampling is truncated; and with further fields, which reach the reward
functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...rollout import Rollout
from .experience import Experience

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")
MASK, KEPT = "env_mask", "kept"

RolloutFunction = Callable[[list[Any]], Mapping[str, Any]]


def call_rollout_function(
    function: RolloutFunction, experience: Experience, eos_token_ids: Sequence[int]
) -> tuple[list[Rollout], list[dict[str, Any]]]:
    """Calls the function for a rollout.

    Args:
        function (`Callable`): trl's function, bound to its trainer.
        experience ([`Experience`]): P prompts, and how many completions each gets.
        eos_token_ids (`Sequence[int]`): Ids that end a completion; one without is truncated.

    Returns:
        `(rollouts, prompts)`: N completions, and the prompt of each with its ids and fields.

    Raises:
        ValueError: Naming the field that is missing, or has another length.
    """
    examples = [prompt for prompt in experience.prompts for _ in range(experience.num_generations)]
    output = function([example["prompt"] for example in examples])
    _check(output, len(examples))
    masks, kept = (output.get(name) or [None] * len(examples) for name in (MASK, KEPT))
    fields = {name: value for name, value in output.items() if name not in (*REQUIRED, MASK, KEPT)}
    rollouts = [
        Rollout(
            list(ids),
            list(logprobs),
            "stop" if len(ids) and ids[-1] in eos_token_ids else "length",
            _list(mask),
            experience.step,
            sets,
        )
        for ids, logprobs, mask, sets in zip(output["completion_ids"], output["logprobs"], masks, kept, strict=True)
    ]
    prompts = [
        {**example, "prompt_ids": list(ids), "columns": {**example["columns"], **_of(fields, index)}}
        for index, (example, ids) in enumerate(zip(examples, output["prompt_ids"], strict=True))
    ]
    return rollouts, prompts


def _check(output: Any, count: int) -> None:
    if not isinstance(output, Mapping):
        raise ValueError(
            f"rollout_func returned a {type(output).__name__}, expected a dictionary with {', '.join(REQUIRED)}."
        )
    for name in (*REQUIRED, MASK, KEPT):
        value = output.get(name)
        if value is None and name not in REQUIRED:
            continue
        if value is None:
            raise ValueError(
                f"rollout_func returned {name}={value!r} (keys {sorted(output)}). Return {', '.join(REQUIRED)}; "
                "logprobs are those of the distribution that the tokens were drawn from."
            )
        if len(value) != count:
            raise ValueError(
                f"rollout_func returned {len(value)} {name} for {count} prompts. It gets each prompt num_generations "
                "times; return one entry for each."
            )


def _of(fields: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The further fields of one completion: an entry of a list, or the value itself."""
    return {
        name: value[index] if isinstance(value, list) and index < len(value) else value
        for name, value in fields.items()
    }


def _list(mask: Any) -> list[int] | None:
    return None if mask is None else [int(each) for each in mask]
