# SPDX-License-Identifier: Apache-2.0
"""Prompts as token ids, ready for the rollout engine.

A prompt is rendered each time it is asked for, because whether it thinks and which system prompt it gets can differ
from epoch to epoch. Both are pure functions of (seed, epoch, index). A prompt that is too long loses its first token
ids (it is never decoded and encoded again, so special tokens survive) or is dropped. Which prompts are dropped is
decided once, by the longest form that each can take, so that the length of the data set never changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .choices import DEFAULT_SYSTEM_PROMPTS, prompt_choices
from .conversations import (
    NOT_PASSED_ON,
    PASSED_TO_TEMPLATE,
    ParsedPrompt,
    PromptError,
    check_same_kind,
    parse_row,
    prompt_column,
)
from .dropped_fields import Place, note_fields, say_dropped
from .files import check_rows
from .objects import own_fields, shared_field_columns
from .rendering import PromptRenderer
from .tokenizers import check_tokenizer
from .tool_schemas import RowTools

logger = logging.get_logger(__name__)

_ENCODE_BATCH = 512
_ADDED_TOKENS = 8  # BOS and the like


class PromptDataset(torch.utils.data.Dataset):
    """Map-style data set of tokenized prompts.

    Args:
        dataset (`datasets.Dataset` or `list[dict]`):
            Rows with a `prompt` (string or messages) or a `conversations` column (MiniMind's format).
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        max_prompt_length (`int`, *optional*): Largest number of token ids of a prompt; no limit if unset.
        overlong_prompts (`str`, *optional*, defaults to `"truncate"`):
            `"truncate"` keeps the last `max_prompt_length` ids, `"drop"` leaves out every prompt whose longest
            possible form is longer.
        thinking_ratio (`float`, *optional*, defaults to 0.9):
            Share of the prompts rendered with thinking on. The chat template gets it as `open_thinking` (MiniMind) or
            `enable_thinking` (Qwen3), whichever it uses. It has no effect on a template that uses neither.
        system_prompt_ratio (`float`, *optional*, defaults to 0.0):
            Share of the conversations without a system message that get one.
        system_prompts (`Sequence[str]`, *optional*): The system prompts to choose from.
        seed (`int`, *optional*, defaults to 0): Seed of the choices.
        chat_template_kwargs (`dict`, *optional*):
            Arguments for the chat template. They override the choice of thinking, and a row's own
            `chat_template_kwargs` override them.
        tools (`list[dict]` or `Callable[[dict], list[dict]]`, *optional*):
            Schemas of tools that the template gets for every conversation whose row has none, or a function that
            returns those of a row.
        implemented (`set[str]`, *optional*):
            Names of the tools that can be called. A row with another is refused. Unset, rows may name any.

    Attributes:
        conversational (`bool`): Whether the prompts are lists of messages.
        columns (`list[str]`): The other columns, which reward functions receive.
        num_dropped (`int`): Prompts left out because they are too long.
        num_truncated (`int`): How often a prompt has been shortened in this process.

    Raises:
        PromptError: If the data, the tokenizer or a setting cannot be used.
    """

    def __init__(
        self,
        dataset: datasets.Dataset | Sequence[Mapping[str, Any]],
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_prompt_length: int | None = None,
        overlong_prompts: str = "truncate",
        thinking_ratio: float = 0.9,
        system_prompt_ratio: float = 0.0,
        system_prompts: Sequence[str] = DEFAULT_SYSTEM_PROMPTS,
        seed: int = 0,
        chat_template_kwargs: dict[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] | Callable[[dict[str, Any]], Sequence[dict[str, Any]] | None] | None = None,
        implemented: set[str] | None = None,
    ):
        _check_ratio("thinking_ratio", thinking_ratio)
        _check_ratio("system_prompt_ratio", system_prompt_ratio)
        if overlong_prompts not in ("truncate", "drop"):
            raise PromptError(f"overlong_prompts must be 'truncate' or 'drop', not {overlong_prompts!r}.")
        if max_prompt_length is not None and max_prompt_length < 1:
            raise PromptError(f"max_prompt_length must be at least 1 (or None for no limit), not {max_prompt_length}.")
        if isinstance(system_prompts, str) or (system_prompt_ratio > 0 and not system_prompts):
            raise PromptError(f"system_prompts must be a list of one or more strings, not {system_prompts!r}.")
        self._rows = check_rows(dataset)
        self._shared_fields = shared_field_columns(self._rows)
        columns = _column_names(self._rows)
        self._column = prompt_column(columns)
        self.columns = [name for name in columns if name not in NOT_PASSED_ON]
        self._tools = RowTools(tools, implemented)
        self._max_prompt_length = max_prompt_length
        self._thinking_ratio = thinking_ratio
        self._system_prompt_ratio = system_prompt_ratio
        self._system_prompts = tuple(system_prompts)
        self._seed = seed
        # In shared memory, so that data loader workers that outlive an epoch see the next one.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self.num_truncated = 0

        self.conversational = self._check_prompts()
        check_tokenizer(tokenizer, self.conversational)
        self._renderer = PromptRenderer(tokenizer, self.conversational, chat_template_kwargs)
        self._kept = range(len(self._rows))
        if overlong_prompts == "drop" and max_prompt_length is not None:
            self._kept = self._rows_that_fit()
        self.num_dropped = len(self._rows) - len(self._kept)
        self._try_the_template()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def thinking_argument(self) -> str | None:
        """The chat template's argument that `thinking_ratio` sets; `None` if it has no effect."""
        renderer = self._renderer
        return next((name for name in renderer.thinking_arguments if name not in renderer.template_kwargs), None)

    def set_epoch(self, epoch: int) -> None:
        """Switches to the choices of an epoch."""
        if self.num_truncated:
            logger.info("%d prompts cut to %d tokens so far.", self.num_truncated, self._max_prompt_length)
        self._epoch.fill_(epoch)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Renders one prompt.

        Args:
            item (`int`): Position in this data set.

        Returns:
            `dict`: `prompt` (`str`, or `list[dict]` with the chosen system message), `prompt_ids` (`list[int]`),
            `index` (`int`, row in the source data set), `columns` (`dict`, the row's other values) and `answer`
            (`str` or `dict`, the row's own completion, *optional*). For later turns also what the template got:
            `thinking` (`bool`), `template_kwargs` (`dict`, thinking included) and `tools` (`list[dict]`, *optional*).
        """
        index = self._kept[item]
        return self.example(own_fields(self._rows[index], self._shared_fields), index, int(self._epoch))

    def row_of(self, number: int) -> int:
        """The row of the source data set that a prompt comes from."""
        return self._kept[number]

    def example(self, row: Mapping[str, Any], index: int, epoch: int) -> dict[str, Any]:
        """Renders a row, with the choices of its number and an epoch; see `__getitem__`."""
        parsed = self.parsed(row, index)
        choices = prompt_choices(self._seed, epoch, index)
        if choices.system < self._system_prompt_ratio:
            parsed = _with_system_prompt(parsed, choices.pick(self._system_prompts))
        arguments = self._renderer.arguments(choices.thinking < self._thinking_ratio, parsed.template_kwargs)
        text = self._renderer.render(parsed, arguments, f"row {index}")
        ids = self._renderer.encode([text])[0]
        if not ids:
            raise PromptError(f"row {index}: the prompt {text!r} has no tokens. Remove the row or give it text.")
        return {
            "prompt": parsed.prompt,
            "prompt_ids": self._shorten(ids, index),
            "index": index,
            "columns": {name: row.get(name) for name in self.columns},
            "answer": parsed.answer,
            "thinking": any(bool(arguments[name]) for name in self._renderer.thinking_arguments),
            "template_kwargs": arguments,
            "tools": parsed.tools,
        }

    def longest(self, row: Mapping[str, Any], index: int) -> int:
        """Token ids of a row's longest possible form."""
        forms = self._longest_forms(self.parsed(row, index), self._longest_system_prompt(), index)
        return max(map(len, self._renderer.encode(forms)))

    def parsed(self, row: Mapping[str, Any], index: int) -> ParsedPrompt:
        """Checks a row, which must be of the kind of the others."""
        parsed = self._parsed(row, index)
        check_same_kind(parsed, self.conversational, f"row {index}")
        return parsed

    def _check_prompts(self) -> bool:
        """Checks every row once, before training, and returns whether the prompts are conversational."""
        conversational = None
        self._with_fields: dict[Place, tuple[int, ParsedPrompt]] = {}
        for index, parsed in self._parsed_rows():
            note_fields(self._with_fields, parsed, index)
            conversational = parsed.conversational if conversational is None else conversational
            check_same_kind(parsed, conversational, f"row {index}")
        return bool(conversational)

    def _parsed_rows(self) -> Iterator[tuple[int, ParsedPrompt]]:
        rows = self._rows
        if isinstance(rows, datasets.Dataset) and not self._tools.depend_on_row:
            rows = rows.select_columns([c for c in (self._column, *PASSED_TO_TEMPLATE) if c in rows.column_names])
        for index, row in enumerate(rows):
            yield index, self._parsed(own_fields(row, self._shared_fields), index)

    def _parsed(self, row: dict[str, Any], index: int) -> ParsedPrompt:
        return self._tools.added_to(parse_row(row, self._column, f"row {index}"), row, f"row {index}")

    def _shorten(self, ids: list[int], index: int) -> list[int]:
        limit = self._max_prompt_length
        if limit is None or len(ids) <= limit:
            return ids
        if self.num_truncated == 0:
            logger.warning(
                "Prompts longer than max_prompt_length = %d lose their first tokens; the first one is row %d with %d.",
                limit,
                index,
                len(ids),
            )
        self.num_truncated += 1
        return ids[-limit:]

    def _rows_that_fit(self) -> list[int]:
        kept: list[int] = []
        batch: list[tuple[int, list[str]]] = []
        longest_system_prompt = self._longest_system_prompt()
        for index, parsed in self._parsed_rows():
            batch.append((index, self._longest_forms(parsed, longest_system_prompt, index)))
            if len(batch) == _ENCODE_BATCH:
                kept += self._fitting(batch)
                batch = []
        kept += self._fitting(batch)
        dropped = len(self._rows) - len(kept)
        if not kept:
            raise PromptError(
                f"All {dropped} prompts are longer than max_prompt_length = {self._max_prompt_length} tokens, so none "
                "is left. Raise max_prompt_length or set overlong_prompts='truncate'."
            )
        if dropped:
            logger.warning(
                "Dropped %d of %d prompts: longer than %d tokens.", dropped, len(self._rows), self._max_prompt_length
            )
        return kept

    def first_longer_than(self, limit: int) -> tuple[int, int] | None:
        """Finds a prompt that can be longer than a limit, in any of its forms.

        Args:
            limit (`int`): Token ids.

        Returns:
            `tuple[int, int]`, *optional*: The row of the first one, and its length.
        """
        if self._max_prompt_length is not None and self._max_prompt_length <= limit:
            return None
        longest_system_prompt, kept = self._longest_system_prompt(), set(self._kept)
        for index, parsed in self._parsed_rows():
            forms = self._longest_forms(parsed, longest_system_prompt, index) if index in kept else []
            # A token is at least a byte, but for those that the tokenizer adds; so short texts need no encoding.
            long = [text for text in forms if len(text.encode()) + _ADDED_TOKENS > limit]
            length = max(map(len, self._renderer.encode(long)), default=0) if long else 0
            if length > limit:
                return index, length
        return None

    def first_without_answer(self) -> int | None:
        """The first row that holds no answer beside its prompt, if there is one."""
        for index in self._kept:
            if not self.parsed(own_fields(self._rows[index], self._shared_fields), index).answer:
                return index
        return None

    def _try_the_template(self) -> None:
        """Renders the first prompt in each of its forms, so that a template that fails does so before training."""
        index, parsed = next(self._parsed_rows())
        self._longest_forms(parsed, self._longest_system_prompt(), index)
        say_dropped(self._with_fields, lambda each, row: self._text(each, self._thinking_ratio > 0, row))

    def _text(self, parsed: ParsedPrompt, thinking: bool, index: int) -> str:
        return self._renderer.render(
            parsed, self._renderer.arguments(thinking, parsed.template_kwargs), f"row {index}"
        )

    def _longest_forms(self, parsed: ParsedPrompt, longest_system_prompt: str | None, index: int) -> list[str]:
        """The forms that can be the longest: each possible state of thinking, with and without a system prompt."""
        forms = [parsed]
        if longest_system_prompt is not None:
            forms.append(_with_system_prompt(parsed, longest_system_prompt))
        states = [
            state for state, share in ((True, self._thinking_ratio), (False, 1 - self._thinking_ratio)) if share > 0
        ]
        texts = (
            self._renderer.render(form, self._renderer.arguments(state, form.template_kwargs), f"row {index}")
            for form in forms
            for state in states
        )
        return list(dict.fromkeys(texts))

    def _longest_system_prompt(self) -> str | None:
        if self._system_prompt_ratio == 0 or not self.conversational:
            return None
        lengths = [len(ids) for ids in self._renderer.encode(list(self._system_prompts))]
        return self._system_prompts[lengths.index(max(lengths))]

    def _fitting(self, batch: list[tuple[int, list[str]]]) -> list[int]:
        encoded = iter(self._renderer.encode([text for _, texts in batch for text in texts])) if batch else iter(())
        longest = [(index, max(len(next(encoded)) for _ in texts)) for index, texts in batch]
        return [index for index, length in longest if length <= self._max_prompt_length]


def say_how_many_think(prompts: PromptDataset, thinking_ratio: float) -> None:
    """Warns, once per process, if `thinking_ratio` decides how prompts read: the text differs, and so does the task.

    Args:
        prompts ([`PromptDataset`]): The prompts.
        thinking_ratio (`float`): Their share that is rendered with thinking.
    """
    name = prompts.thinking_argument
    if name is None or thinking_ratio == 0:
        return
    logger.warning_once(
        f"thinking_ratio={thinking_ratio:g}: {thinking_ratio:.0%} of the prompts are rendered with thinking on "
        f"({name}=True in the chat template), so their answers should begin with a thought. For a model that was "
        "trained without thoughts this is a different task; thinking_ratio=0 turns thinking off."
    )


def _with_system_prompt(parsed: ParsedPrompt, system_prompt: str) -> ParsedPrompt:
    if not parsed.conversational or any(m["role"] in ("system", "developer") for m in parsed.prompt):
        return parsed
    messages = [{"role": "system", "content": system_prompt}, *parsed.prompt]
    return replace(parsed, prompt=messages)


def _check_ratio(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise PromptError(f"{name} must be between 0 and 1 (it is a share of the prompts), not {value}.")


def _column_names(rows: Any) -> list[str]:
    if isinstance(rows, datasets.Dataset):
        return rows.column_names
    return list(dict.fromkeys(name for row in rows for name in row))
