# SPDX-License-Identifier: Apache-2.0
"""Completions that the student of a distillation did not draw: the answers that the data hold.

They have no log-probability under the weights that drew the others, which NaN stands for.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...agent.calls import opens_thought
from ...data import PromptError
from ...rollout import Rollout

_TAIL = 16  # tokens at the end of a prompt, where a chat template opens the thought


def chosen_off_policy(count: int, lmbda: float, seed: int) -> list[bool]:
    """Decides for each prompt of a rollout whether its completions are not the student's.

    Args:
        count (`int`): Number of prompts.
        lmbda (`float`): Share of the prompts that the student answers itself.
        seed (`int`): Seed of the rollout, of which the choice is a pure function.
    """
    return (np.random.default_rng([seed, 1]).random(count) >= lmbda).tolist()


def given_rollout(
    prompt: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: tuple[int, ...],
    max_completion_length: int,
    version: int,
) -> Rollout:
    """The completion that a prompt's row holds, as if it had been drawn.

    A prompt that opens a thought is followed by the answer's own thought, or by none; a prompt that does not, by the
    answer alone.

    Args:
        prompt (`dict`): From a [`PromptDataset`].
        tokenizer: Encodes the answer.
        eos_token_ids (`tuple[int, ...]`): Ids that end a completion.
        max_completion_length (`int`): Tokens after which it is cut.
        version (`int`): The version of the weights that draw the other completions.

    Raises:
        PromptError: If the row holds no answer.
    """
    where, answer = f"row {prompt['index']}", prompt["answer"]
    if isinstance(answer, dict):
        answer = _text_of(answer, opens_thought(tokenizer.decode(prompt["prompt_ids"][-_TAIL:])), where)
    if not isinstance(answer, str) or not answer:
        raise no_answer(prompt["index"])
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in eos_token_ids else eos_token_ids[0]
    ids = [*ids, end]
    is_cut = len(ids) > max_completion_length
    ids = ids[:max_completion_length]
    return not_drawn(Rollout(ids, [], "length" if is_cut else "stop", weights_version=version))


def not_drawn(rollout: Rollout) -> Rollout:
    """A completion of another source, without log-probabilities under the student."""
    return replace(rollout, logprobs=[math.nan] * len(rollout.completion_ids), kept=None)


def no_answer(row: int) -> PromptError:
    """The error for a row that a completion should come from and does not."""
    return PromptError(
        f"row {row}: lmbda is below 1, so some completions come from the data, but the row holds no answer. Give it a "
        "column `completion`, or a last assistant turn in `conversations`; or set lmbda=1, or seq_kd=True."
    )


def _text_of(message: dict[str, Any], is_thinking: bool, where: str) -> str:
    if message.get("tool_calls"):
        raise PromptError(
            f"{where}: the answer calls tools, and such an answer cannot be taken as a completion. Remove the row, or "
            "set lmbda=1."
        )
    content, thought = message.get("content") or "", message.get("reasoning_content") or ""
    return f"{thought}\n</think>\n\n{content}" if content and is_thinking else content
