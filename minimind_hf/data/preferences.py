# SPDX-License-Identifier: Apache-2.0
"""MiniMind's preferences as token ids: a question and two answers.

An answer is the rest of a conversation, from where the two part: one message of the assistant, or several turns with
calls and the answers of tools between them. Then, as in [`supervised`], the turns of the assistant are compared and
nothing else.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ..rewards.model import answer_only_messages
from .conversations import Messages, PromptError, parse_messages, template_kwargs_of, tools_of
from .supervised import ConversationRenderer, Piece, thinks


def parse_preference(row: Mapping[str, Any], where: str) -> tuple[Messages, Messages, Messages, list[dict] | None]:
    """Reads a preference: a question and two answers.

    Args:
        row (`Mapping`): `chosen` and `rejected`, each a whole conversation or the continuation of a common `prompt`.
        where (`str`): Its place, for error messages.

    Returns:
        `tuple`: The messages before the answers, those of the chosen and the rejected answer, the tools.

    Raises:
        PromptError: If one is missing, the conversations have no beginning in common or do not part at an assistant's
            turn, or one does not end with the assistant.
    """
    missing = [name for name in ("chosen", "rejected") if row.get(name) is None]
    if missing:
        raise PromptError(
            f"{where}: `{missing[0]}` is missing. A preference has `chosen` and `rejected`. Correct or remove the row."
        )
    prompt = _as_list(row.get("prompt") or [], where, "prompt")
    (chosen, tools), (rejected, _) = (
        parse_messages([*prompt, *_as_list(row[name], where, name)], f"{where}: `{name}`")
        for name in ("chosen", "rejected")
    )
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)  # an answer has at least one message
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    for name, messages in (("chosen", chosen), ("rejected", rejected)):
        if messages[-1]["role"] != "assistant":
            raise PromptError(f"{where}: the last message of `{name}` is not the assistant's. Correct the row.")
        if not common or messages[common]["role"] != "assistant":
            raise PromptError(
                f"{where}: `chosen` and `rejected` must be the same conversation up to an answer of the assistant, "
                f"but message {common} of `{name}` is the {messages[common]['role']}'s. Correct or remove the row."
            )
    template_kwargs_of(row, where)
    return chosen[:common], chosen[common:], rejected[common:], tools_of(row, tools, where)


def _as_list(value: Any, where: str, name: str) -> list:
    if not isinstance(value, list):
        raise PromptError(f"{where}: `{name}` is {value!r:.80}, expected a list of messages. Correct the row.")
    return value


def preference_pieces(
    row: Mapping[str, Any], index: int, renderer: ConversationRenderer
) -> tuple[str, list[Piece], list[Piece]]:
    """A preference as text.

    Args:
        row (`Mapping`): As for [`parse_preference`].
        index (`int`): Its number, for error messages.
        renderer ([`ConversationRenderer`]): Of the policy's tokenizer.

    Returns:
        `tuple`: What both answers follow, and the pieces of the chosen and the rejected one. Where one of them opens
        a thought and the other does not, they part at the thought.
    """
    where = f"row {index}"
    prompt, chosen, rejected, tools = parse_preference(row, where)
    kwargs = template_kwargs_of(row, where)
    opening = renderer.opening(prompt, tools, thinks(chosen[0]) and thinks(rejected[0]), kwargs)
    first = 2 * sum(message["role"] == "assistant" for message in prompt)  # what is given of the answer's first turn
    pieces = [
        renderer.pieces([*prompt, *answer], tools, f"{where}: `{name}`", kwargs)
        for name, answer in (("chosen", chosen), ("rejected", rejected))
    ]
    texts = ["".join(text for text, _ in each[: first + 2]) for each in pieces]
    before = renderer.shared_opening(prompt, tools, opening, texts, kwargs)
    answers = ([(t[len(before) :], True), *each[first + 2 : -1]] for t, each in zip(texts, pieces, strict=True))
    return (before, *answers)


def encode_preference(row: Mapping[str, Any], index: int, renderer: ConversationRenderer) -> dict[str, list[int]]:
    """A preference as token ids for a DPO trainer.

    Args:
        row (`Mapping`): As for [`parse_preference`].
        index (`int`): Its number, for error messages.
        renderer ([`ConversationRenderer`]): Of the policy's tokenizer.

    Returns:
        `dict[str, list[int]]`: `prompt_ids`, `chosen_ids`, `rejected_ids`; `chosen_mask` and `rejected_mask` are 1
        for tokens that the policy would write, 0 for answers of tools and what else is given between turns.
    """
    before, *answers = preference_pieces(row, index, renderer)
    prompt_ids, _ = renderer.encode([(before, False)])
    encoded = {"prompt_ids": prompt_ids}
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        ids, mine = renderer.encode([(before, False), *answer])
        encoded[f"{name}_ids"] = ids[len(prompt_ids) :]
        encoded[f"{name}_mask"] = [int(is_mine) for is_mine in mine[len(prompt_ids) :]]
    return encoded


def preference_ids(
    row: Mapping[str, Any], index: int, renderer: ConversationRenderer, answer_only: bool = True
) -> dict[str, list[int]]:
    """A preference as token ids for trl's RewardTrainer, rendered as [`RewardModel`] renders what it scores.

    Args:
        row (`Mapping`): As for [`parse_preference`].
        index (`int`): Its number, for error messages.
        renderer ([`ConversationRenderer`]): The reward model's tokenizer.
        answer_only (`bool`): Leave thoughts out, as [`RewardModel`] does by default.

    Returns:
        `dict[str, list[int]]`: `chosen_ids` and `rejected_ids`.
    """
    prompt, chosen, rejected, _ = parse_preference(row, f"row {index}")
    encoded = {}
    for name, answer in (("chosen_ids", chosen), ("rejected_ids", rejected)):
        messages = [*prompt, *(answer_only_messages(answer) if answer_only else answer)]
        text = renderer.tokenizer.apply_chat_template(messages, tokenize=False)
        encoded[name] = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    return encoded
