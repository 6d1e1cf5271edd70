# SPDX-License-Identifier: Apache-2.0
"""MiniMind's data for what comes before reinforcement learning: texts, conversations and preferences as token ids.

Learned in a conversation is what the model will have to write itself: of every assistant turn the tokens after the
generation prompt (with thinking opened, if the turn thinks) up to and including the end-of-turn token. Answers of
tools, headers and what a generation prompt opens are given to it. Turns are not searched for in token ids: they are
where the chat template puts them. So any template works that renders the beginning of a conversation the same way,
whatever follows. If a known template does not (Qwen3's drops earlier thoughts, for example), trl's training version of
it is used.

A conversation is encoded as it comes about in a rollout, piece by piece: no token spans the border between what is
given and what is learned, and what a tool answered holds no special tokens.
"""

from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import get_training_chat_template

from ..rewards.rules import THINK_END, answer_part
from .choices import DEFAULT_SYSTEM_PROMPTS, prompt_choices
from .conversations import Messages, PromptError, parse_messages, template_kwargs_of, tools_of
from .tokenizers import turn_end
from .untrusted import UntrustedText

CONVERSATION_COLUMNS = ("conversations", "messages")
IGNORED = -100  # transformers' label of a token that is not learned

Piece = tuple[str, bool]
"""A part of a conversation's text, and whether it is learned."""


class ConversationRenderer:
    """Renders whole conversations with a tokenizer's chat template and says which parts are learned.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer with a chat template and an EOS token.

    Raises:
        PromptError: If the tokenizer lacks one of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        name = f"{type(tokenizer).__name__} {tokenizer.name_or_path!r}"
        if tokenizer.eos_token is None:
            raise PromptError(f"The tokenizer {name} has no eos token to end a turn with. Set `tokenizer.eos_token`.")
        self.tokenizer = tokenizer
        self.turn_end = turn_end(tokenizer)
        self._template = _training_template(tokenizer) if tokenizer.chat_template else None
        self._untrusted = UntrustedText(tokenizer)

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

    def opening(
        self, messages: Messages, tools: list[dict] | None, thinking: bool, template_kwargs: dict[str, Any]
    ) -> str:
        """The conversation as text, ready for the assistant to answer; a row's own arguments win over its thinking."""
        state = {"open_thinking": thinking, "enable_thinking": thinking} | template_kwargs
        return self.text(messages, tools, add_generation_prompt=True, **state)

    def shared_opening(
        self,
        messages: Messages,
        tools: list[dict] | None,
        opening: str,
        texts: list[str],
        template_kwargs: dict[str, Any],
    ) -> str:
        """What the model is given of a turn: the opening, or the part of it with which the template begins turns.

        If an earlier turn lacks what the generation prompt opens (a thought, for example), an answer can begin with
        the same characters by chance. These are not given, so no more is shared than precedes any answer.

        Args:
            messages (`list[dict]`): The conversation before the answer.
            tools (`list[dict]`, *optional*): Its tools.
            opening (`str`): Both as text, ready for the assistant to answer.
            texts (`list[str]`): The conversation with each of the answers.
            template_kwargs (`dict`): Further arguments of the chat template.
        """
        if all(text.startswith(opening) for text in texts):
            return opening
        answers = [{"role": "assistant", "content": letter} for letter in "AB"]
        turns = [self.text([*messages, answer], tools, **template_kwargs) for answer in answers]
        return commonprefix([opening, commonprefix(turns), *texts])

    def pieces(
        self, messages: Messages, tools: list[dict] | None, where: str, template_kwargs: dict[str, Any]
    ) -> list[Piece]:
        """Renders a conversation.

        Args:
            messages (`list[dict]`): The conversation.
            tools (`list[dict]`, *optional*): Its tools.
            where (`str`): Its place, for error messages.
            template_kwargs (`dict`): The row's own arguments for the chat template.

        Returns:
            `list[tuple[str, bool]]`: Texts, and whether they are learned: what is given and each turn by turns, and
            what the template puts after the last turn.

        Raises:
            PromptError: If there is no assistant turn, or the template renders a turn differently when more follow.
        """
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            roles = [message["role"] for message in messages]
            raise PromptError(f"{where}: there is no assistant turn to learn from, only {roles}. Remove the row.")
        if turns[0] == 0:
            raise PromptError(f"{where}: the first turn is the assistant's. Begin with a user turn.")
        messages = [self._protected(message) for message in messages]
        whole, pieces, position = self.text(messages, tools, **template_kwargs), [], 0
        for index in turns:
            so_far = self.text(messages[: index + 1], tools, **template_kwargs)
            if not whole.startswith(so_far):
                raise PromptError(
                    f"{where}: the chat template renders turn {index} differently when others follow, so the model "
                    "would learn something other than it generates. Split the conversation so that each row ends with "
                    "the turn to learn, or use a template that does not change earlier turns."
                )
            opening = self.opening(messages[:index], tools, thinks(messages[index]), template_kwargs)
            start = len(self.shared_opening(messages[:index], tools, opening, [so_far], template_kwargs))
            stop = self._end_of_turn(so_far, start, messages[index]["content"].strip())
            turn = so_far[start:stop]
            _check_rendered(messages[index], turn, f"{where}: the chat template renders", f"of turn {index}")
            pieces += [(so_far[position:start] + _closed_thought(opening[start:]), False), (turn, True)]
            position = stop
        return [*pieces, (whole[position:], False)]

    def encode(self, pieces: list[Piece]) -> tuple[list[int], list[bool]]:
        """The token ids of a conversation, and which of them are learned."""
        ids: list[int] = []
        learned: list[bool] = []
        for text, mine in pieces:
            more = self._untrusted.encode(text, after=self.tokenizer.eos_token if ids else "")
            ids += more
            learned += [mine] * len(more)
        return ids, learned

    def _protected(self, message: dict[str, Any]) -> dict[str, Any]:
        is_answer = message["role"] == "tool"
        return {**message, "content": self._untrusted.protected(message["content"])} if is_answer else message

    def _end_of_turn(self, text: str, start: int, content: str) -> int:
        """Where the EOS after the turn's own content ends: one inside it, or before the turn, is not its end."""
        after_content = max(start, text.rfind(content, start) + len(content)) if content else start
        for end in filter(None, (self.tokenizer.eos_token, self.turn_end)):
            position = text.rfind(end, after_content)
            if position >= 0:
                return position + len(end)
        return len(text)


def _training_template(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return get_training_chat_template(tokenizer) or tokenizer.chat_template
    except ValueError:  # trl does not know this template
        return tokenizer.chat_template


def _closed_thought(opened: str) -> str:
    """What a generation prompt opens and past turns lack; given if the thought is closed, as the answer follows."""
    return opened if THINK_END in opened else ""


def _check_rendered(message: Mapping[str, Any], turn: str, renders: str, of_turn: str) -> None:
    """Refuses a turn of which the template drops something: the model would learn to leave it out."""
    if not turn:
        raise PromptError(
            f"{renders} nothing to learn {of_turn} ({message!r:.80}). Correct or remove the row, or use a template "
            "that ends turns after their content."
        )
    calls = message.get("tool_calls") or []
    said = [answer_part(message["content"]).strip()] if calls else []
    for expected in [*(str(call["function"].get("name")) for call in calls), *said]:
        if expected not in turn:
            raise PromptError(
                f"{renders} {turn!r:.80} {of_turn}, without {expected!r:.80}, so the model would learn to leave it "
                "out. Use a template that renders calls and the text beside them, or correct the row."
            )


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
        tools_of(row, parse_messages(row[kind], f"{where}: `{kind}`")[1], where)
        template_kwargs_of(row, where)
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
    tools = tools_of(row, tools, where)
    ids, learned = renderer.encode(renderer.pieces(messages, tools, where, template_kwargs_of(row, where)))
    return {"input_ids": ids, "labels": [i if mine else IGNORED for i, mine in zip(ids, learned, strict=True)]}
