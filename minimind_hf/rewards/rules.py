# SPDX-License-Identifier: Apache-2.0
"""The rule signals of MiniMind: length, thinking, format and repetition.

Each rule is a pure function of one text (`length_score`, ...) and a reward function with trl's signature over a batch
of completions (`length_reward`, ...). The text is the completion as it was sampled: if the prompt itself opens
`<think>`, the completion has only `</think>`, and everything before it is the thought. The numbers in the rules are
keyword arguments, so `functools.partial(length_reward, max_chars=2000)` is a reward function too.
"""

import re
from collections.abc import Callable
from typing import Any

THINK_END = "</think>"

Completion = str | list[dict[str, Any]]

_TOKEN = re.compile(r"\w+|[^\w\s]")
# Han, kana and the iteration marks: scripts written without spaces, in which \w+ matches whole sentences.
_UNSPACED = r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_TOKEN_BY_CHARACTER = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


def completion_text(completion: Completion) -> str:
    """The text of a completion: the string itself, or the content of its assistant messages."""
    if isinstance(completion, str):
        return completion
    # A turn that is nothing but a call may have no content.
    return "\n".join(message.get("content") or "" for message in completion if message["role"] == "assistant")


def answer_part(response: str) -> str:
    """The text after the first `</think>`, stripped; the whole response, unchanged, if there is none."""
    _, separator, answer = response.partition(THINK_END)
    return answer.strip() if separator else response


def length_score(response: str, *, min_chars: int = 20, max_chars: int = 800) -> float:
    """+0.5 if the stripped response has `min_chars` to `max_chars` characters, else -0.5."""
    return 0.5 if min_chars <= len(response.strip()) <= max_chars else -0.5


def thinking_score(response: str, *, min_chars: int = 20, max_chars: int = 300) -> float:
    """+1.0 if the stripped text before the first `</think>` has `min_chars` to `max_chars` characters, else -0.5.

    0.0 if there is no `</think>`: a response need not think. An opening `<think>` in the response counts as text.
    """
    thought, separator, _ = response.partition(THINK_END)
    if not separator:
        return 0.0
    return 1.0 if min_chars <= len(thought.strip()) <= max_chars else -0.5


def format_score(response: str) -> float:
    """+0.25 if `</think>` occurs exactly once, -0.25 if more often, 0.0 if not at all."""
    count = response.count(THINK_END)
    return 0.0 if count == 0 else 0.25 if count == 1 else -0.25


def repetition_penalty(text: str, *, ngram: int = 3, max_penalty: float = 0.5, split_cjk: bool = False) -> float:
    """Share of the n-grams of `text` that occurred before, scaled so that one half or more costs `max_penalty`.

    Args:
        text (`str`): The text. Its tokens are runs of word characters and single punctuation marks, in lower case.
        ngram (`int`, *optional*, defaults to 3): Tokens of an n-gram.
        max_penalty (`float`, *optional*, defaults to 0.5): Largest penalty; with 0.5 the penalty is the share itself.
        split_cjk (`bool`, *optional*, defaults to `False`):
            Split Chinese and Japanese text into characters. Otherwise a clause without spaces is one token, and
            repetition inside it is not seen.

    Returns:
        `float`: Between 0 and `max_penalty`; 0 for a text of fewer than `ngram` tokens.
    """
    tokens = (_TOKEN_BY_CHARACTER if split_cjk else _TOKEN).findall(text.lower())
    grams = [tuple(tokens[i : i + ngram]) for i in range(len(tokens) - ngram + 1)]
    if not grams:
        return 0.0
    repeated = len(grams) - len(set(grams))
    return min(max_penalty, 2 * max_penalty * repeated / len(grams))


def repetition_score(response: str, **options: Any) -> float:
    """Minus the [`repetition_penalty`] of the answer part; takes its options."""
    # Subtracted from zero, because the negative of 0.0 is printed as -0.0.
    return 0.0 - repetition_penalty(answer_part(response), **options)


def length_reward(
    prompts: list,
    completions: list[Completion],
    completion_ids: list | None = None,
    *,
    min_chars: int = 20,
    max_chars: int = 800,
    **columns: Any,
) -> list[float]:
    """[`length_score`] of each completion."""
    return [length_score(completion_text(c), min_chars=min_chars, max_chars=max_chars) for c in completions]


def thinking_reward(
    prompts: list,
    completions: list[Completion],
    completion_ids: list | None = None,
    *,
    min_chars: int = 20,
    max_chars: int = 300,
    **columns: Any,
) -> list[float]:
    """[`thinking_score`] of each completion."""
    return [thinking_score(completion_text(c), min_chars=min_chars, max_chars=max_chars) for c in completions]


def format_reward(
    prompts: list, completions: list[Completion], completion_ids: list | None = None, **columns: Any
) -> list[float]:
    """[`format_score`] of each completion."""
    return [format_score(completion_text(c)) for c in completions]


def repetition_reward(
    prompts: list,
    completions: list[Completion],
    completion_ids: list | None = None,
    *,
    ngram: int = 3,
    max_penalty: float = 0.5,
    split_cjk: bool = False,
    **columns: Any,
) -> list[float]:
    """[`repetition_score`] of each completion."""
    options = {"ngram": ngram, "max_penalty": max_penalty, "split_cjk": split_cjk}
    return [repetition_score(completion_text(c), **options) for c in completions]


def repetition_reward_cjk(
    prompts: list, completions: list[Completion], completion_ids: list | None = None, **columns: Any
) -> list[float]:
    """[`repetition_score`] of each completion, with Chinese and Japanese text split into characters."""
    return [repetition_score(completion_text(c), split_cjk=True) for c in completions]


REWARD_FUNCTIONS: dict[str, Callable[..., list[float]]] = {
    "length": length_reward,
    "thinking": thinking_reward,
    "format": format_reward,
    "repetition": repetition_reward,
    "repetition_cjk": repetition_reward_cjk,
}
"""The rules by name."""
