# SPDX-License-Identifier: Apache-2.0
"""MiniMind's data for what comes before reinforcement learning: texts, conversations and preferences as token ids.

Learned in a conversation is what the model will have to write itself: of every assistant turn the tokens after the
generation prompt (with thinking opened, if the turn thinks) up to and including the end-of-turn token. Turns are not
searched for in token ids: they are where the chat template puts them. So any template works that renders the
beginning of a conversation the same way, whatever follows. If a known template does not (Qwen3's drops earlier
thoughts, for example), trl's training version of it is used.
"""

from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import get_training_chat_template

from ..rewards.rules import answer_part
from .choices import DEFAULT_SYSTEM_PROMPTS, prompt_choices
from .conversations import Messages, PromptError, parse_messages

CONVERSATION_COLUMNS = ("conversations", "messages")
IGNORED = -100  # transformers' label of a token that is not learned


class ConversationRenderer:
    """Renders whole conversations with a tokenizer's chat template and says which parts are learned.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A fast tokenizer with a chat template and an EOS token.

    Raises:
        PromptError: If the tokenizer lacks one of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        name = f"{type(tokenizer).__name__} {tokenizer.name_or_path!r}"
        if tokenizer.eos_token is None:
            raise PromptError(f"The tokenizer {name} has no eos token to end a turn with. Set `tokenizer.eos_token`.")
        if not tokenizer.is_fast:
            raise PromptError(
                f"The tokenizer {name} does not return the positions of tokens in the text. Use its fast version."
            )
        self.tokenizer = tokenizer
        self._template = _training_template(tokenizer) if tokenizer.chat_template else None

    def text(self, messages: Messages, tools: list[dict] | None = None, **template_kwargs: Any) -> str:
        """The conversation as text."""
        if self._template is None:
            raise PromptError(
                f"The tokenizer {self.tokenizer.name_or_path!r} has no chat template to render conversations. Set "
                "`tokenizer.chat_template`, or use the tokenizer of the model's instruct version."
            )
        return self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, chat_template=self._template, **template_kwargs
        )

    def opening(self, messages: Messages, tools: list[dict] | None, thinking: bool) -> str:
        """The conversation as text, ready for the assistant to answer."""
        state = {"open_thinking": thinking, "enable_thinking": thinking}
        return self.text(messages, tools, add_generation_prompt=True, **state)

    def shared_opening(self, messages: Messages, tools: list[dict] | None, opening: str, texts: list[str]) -> str:
        """What the model is given of a turn: the opening, or the part of it with which the template begins turns.

        If an earlier turn lacks what the generation prompt opens (a thought, for example), an answer can begin with
        the same characters by chance. These are not given, so no more is shared than precedes any answer.

        Args:
            messages (`list[dict]`): The conversation before the answer.
            tools (`list[dict]`, *optional*): Its tools.
            opening (`str`): Both as text, ready for the assistant to answer.
            texts (`list[str]`): The conversation with each of the answers.
        """
        if all(text.startswith(opening) for text in texts):
            return opening
        turns = [self.text([*messages, {"role": "assistant", "content": letter}], tools) for letter in "AB"]
        return commonprefix([opening, commonprefix(turns), *texts])

    def learned_spans(self, messages: Messages, tools: list[dict] | None, where: str) -> tuple[str, list[range]]:
        """Renders a conversation.

        Args:
            messages (`list[dict]`): The conversation.
            tools (`list[dict]`, *optional*): Its tools.
            where (`str`): Its place, for error messages.

        Returns:
            `tuple[str, list[range]]`: The text, and the characters of each assistant turn that are learned.

        Raises:
            PromptError: If there is no assistant turn, or the template renders a turn differently when more follow.
        """
        whole = self.text(messages, tools)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if index == 0:
                raise PromptError(f"{where}: the first turn is the assistant's. Begin with a user turn.")
            so_far = self.text(messages[: index + 1], tools)
            if not whole.startswith(so_far):
                raise PromptError(
                    f"{where}: the chat template renders turn {index} differently when others follow, so the model "
                    "would learn something else than it generates. Split the conversation so that each row ends with "
                    "the turn to learn, or use a template that does not change earlier turns."
                )
            before = self.opening(messages[:index], tools, thinks(message))
            start = len(self.shared_opening(messages[:index], tools, before, [so_far]))
            spans.append(range(start, self._end_of_turn(so_far)))
        if not spans:
            roles = [message["role"] for message in messages]
            raise PromptError(f"{where}: there is no assistant turn to learn from, only {roles}. Remove the row.")
        return whole, spans

    def _end_of_turn(self, text: str) -> int:
        position = text.rfind(self.tokenizer.eos_token)
        return len(text) if position < 0 else position + len(self.tokenizer.eos_token)


def _training_template(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return get_training_chat_template(tokenizer) or tokenizer.chat_template
    except ValueError:  # trl does not know this template
        return tokenizer.chat_template


def thinks(message: Mapping[str, Any]) -> bool:
    """Whether an assistant message contains a thought."""
    thought, separator, _ = message["content"].partition("</think>")
    return bool(message.get("reasoning_content") or (separator and thought.split("<think>")[-1].strip()))


def check_example(row: Mapping[str, Any], where: str) -> str:
    """Refuses a row that supervised training cannot use.

    Returns:
        `str`: The column of the example: `conversations`, `messages` or `text`.

    Raises:
        PromptError: If none of them is there, or its value cannot be used.
    """
    kind = next((name for name in (*CONVERSATION_COLUMNS, "text") if row.get(name) is not None), None)
    if kind is None:
        raise PromptError(
            f"{where}: there is neither `conversations` (or `messages`) nor `text`; the columns are {list(row)}. "
            "Rename one of them, or remove the row."
        )
    if kind != "text":
        parse_messages(row[kind], f"{where}: `{kind}`")
    elif not isinstance(row["text"], str) or not row["text"]:
        raise PromptError(f"{where}: `text` is {row['text']!r}, expected a string. Correct or remove the row.")
    return kind


def encode_text(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """A text between BOS and EOS, all of it learned: an example for pretraining."""
    ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
    ends = ([tokenizer.bos_token_id], [tokenizer.eos_token_id])
    before, after = ([token for token in end if token is not None] for end in ends)
    ids = before + ids + after
    return {"input_ids": ids, "labels": list(ids)}


def encode_conversation(
    row: Mapping[str, Any],
    index: int,
    renderer: ConversationRenderer,
    column: str = "conversations",
    system_prompt_ratio: float = 0.0,
    seed: int = 0,
) -> dict[str, list[int]]:
    """A conversation as token ids, with labels where the assistant speaks.

    Args:
        row (`Mapping`): A row in MiniMind's format.
        index (`int`): Its number. With `seed` it decides on the system prompt.
        renderer ([`ConversationRenderer`]): Of the tokenizer.
        column (`str`): The column of the messages.
        system_prompt_ratio (`float`): Share of the conversations without a system message that get one.
        seed (`int`): Of that choice.

    Returns:
        `dict[str, list[int]]`: `input_ids`, and `labels`, which are -100 where nothing is learned.
    """
    where = f"row {index}"
    messages, tools = parse_messages(row[column], f"{where}: `{column}`")
    choices = prompt_choices(seed, 0, index)
    if choices.system < system_prompt_ratio and messages[0]["role"] not in ("system", "developer"):
        messages = [{"role": "system", "content": choices.pick(DEFAULT_SYSTEM_PROMPTS)}, *messages]
    text, spans = renderer.learned_spans(messages, tools, where)
    encoded = renderer.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    learned = [any(start in span for span in spans) for start, _ in encoded["offset_mapping"]]
    return {"input_ids": ids, "labels": [i if mine else IGNORED for i, mine in zip(ids, learned, strict=True)]}


def parse_preference(row: Mapping[str, Any], where: str) -> tuple[Messages, dict, dict, list[dict] | None]:
    """Reads a preference: a question and two answers.

    Args:
        row (`Mapping`): `chosen` and `rejected`, each a whole conversation or the continuation of a common `prompt`.
        where (`str`): Its place, for error messages.

    Returns:
        `tuple`: The messages before the answers, the chosen and the rejected answer, the tools.

    Raises:
        PromptError: If one is missing, a last message is not the assistant's, or the conversations differ earlier.
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
    if chosen[:-1] != rejected[:-1] or not chosen[:-1]:
        raise PromptError(
            f"{where}: `chosen` and `rejected` must be the same conversation up to their last messages, the answers "
            "to compare. Correct or remove the row."
        )
    for name, messages in (("chosen", chosen), ("rejected", rejected)):
        if messages[-1]["role"] != "assistant":
            raise PromptError(f"{where}: the last message of `{name}` is not the assistant's. Correct the row.")
    return chosen[:-1], chosen[-1], rejected[-1], tools


def _as_list(value: Any, where: str, name: str) -> list:
    if not isinstance(value, list):
        raise PromptError(f"{where}: `{name}` is {value!r:.80}, expected a list of messages. Correct the row.")
    return value


def preference_texts(row: Mapping[str, Any], index: int, renderer: ConversationRenderer) -> dict[str, str]:
    """A preference as the three texts that trl's DPOTrainer takes: `prompt`, `chosen` and `rejected`."""
    prompt, chosen, rejected, tools = parse_preference(row, f"row {index}")
    before = renderer.opening(prompt, tools, thinks(chosen) and thinks(rejected))
    texts = {}
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        whole, spans = renderer.learned_spans([*prompt, answer], tools, f"row {index}: `{name}`")
        texts[name] = whole[: spans[-1].stop]
    before, bos = renderer.shared_opening(prompt, tools, before, list(texts.values())), renderer.tokenizer.bos_token
    start = len(before)
    if bos and renderer.tokenizer("", add_special_tokens=True)["input_ids"][:1] == [renderer.tokenizer.bos_token_id]:
        before = before.removeprefix(bos)  # the trainer's tokenizer adds it
    return {"prompt": before} | {name: text[start:] for name, text in texts.items()}


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
        if answer_only:
            answer = {"role": "assistant", "content": answer_part(answer["content"])}
        text = renderer.tokenizer.apply_chat_template([*prompt, answer], tokenize=False)
        encoded[name] = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
    return encoded
