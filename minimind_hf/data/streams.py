# SPDX-License-Identifier: Apache-2.0
"""Prompts from a stream: a data set whose rows come in an order, of unknown number, and are never all in memory.

A stream is read as numbered prompts: prompt `n` is the n-th of an endless order that begins again, with new choices,
whenever the rows end. So processes share a stream as they share any data set, by numbers: each reads all rows and
renders its own. A resumed run asks for the number where it stopped, and the rows before it are read and dropped; that
is exact whatever the stream is made of, and needs nothing from a checkpoint.

Shuffling goes through a buffer of [`SHUFFLE_BUFFER`] rows: a row comes out at random, the next one takes its place.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, islice
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .conversations import PromptError
from .objects import without_nulls
from .prompts import PromptDataset

logger = logging.get_logger(__name__)

SHUFFLE_BUFFER = 1000  # rows, as in `datasets.IterableDataset.shuffle`
_LOOKED_AT = 32  # rows that are checked before training
_MANY = 10_000  # rows of a stream that has to be read whole


class PromptStream(torch.utils.data.Dataset):
    """Prompts of a stream, by their number in the order of training. They are read forwards; a smaller number than
    the last one begins anew.

    Args:
        dataset (`datasets.IterableDataset` or `torch.utils.data.IterableDataset`):
            Rows as for [`PromptDataset`], the same in every process.
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer.
        at_least (`int`, *optional*, defaults to 1): Rows needed, which is checked now.
        shuffle (`bool`, *optional*, defaults to `False`): Whether rows go through the buffer, anew in each pass.
        seed (`int`, *optional*, defaults to 0): Seed of order and choices.
        max_prompt_length (`int`, *optional*), overlong_prompts (`str`, *optional*, defaults to `"truncate"`):
            As for [`PromptDataset`]; `"drop"` leaves out a prompt when it comes.
        rendering: Further arguments of [`PromptDataset`].

    Attributes:
        first_prompts (`list`): The prompts of the first rows, by which another stream is recognised.
        conversational, columns, thinking_argument: As of [`PromptDataset`], from the first rows.

    Raises:
        PromptError: If the first rows, the tokenizer or a setting cannot be used. Rows further on raise it when they
            come, with their number in the stream.
    """

    def __init__(
        self,
        dataset: datasets.IterableDataset | torch.utils.data.IterableDataset,
        tokenizer: PreTrainedTokenizerBase,
        *,
        at_least: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        max_prompt_length: int | None = None,
        overlong_prompts: str = "truncate",
        **rendering: Any,
    ):
        self._dataset, self._shuffle, self._seed, self._epoch = dataset, shuffle, seed, 0
        self._opened: Iterator[Mapping[str, Any]] | None = None
        rows = stream_rows(dataset)
        first = list(islice(rows, max(_LOOKED_AT, at_least)))
        if len(first) < at_least:
            raise PromptError(
                f"The stream ({type(dataset).__name__}) has {len(first)} prompts, but one rollout over all processes "
                f"needs {at_least} (per_device_train_batch_size x steps_per_generation x processes / "
                "num_generations). Lower the batch size, raise num_generations or add prompts."
            )
        own = {"max_prompt_length": max_prompt_length, "seed": seed, **rendering}
        as_they_come = "truncate" if overlong_prompts == "drop" else overlong_prompts
        self._renderer = PromptDataset(first, tokenizer, overlong_prompts=as_they_come, **own)
        self._limit, self._drops = max_prompt_length, overlong_prompts == "drop" and max_prompt_length is not None
        self.conversational, self.columns = self._renderer.conversational, self._renderer.columns
        self.thinking_argument = self._renderer.thinking_argument
        self.first_prompts = [self._renderer.parsed(row, index).prompt for index, row in enumerate(first[:_LOOKED_AT])]
        self._opened = chain(first, rows)  # not opened again: a stream may be readable only once
        self._begin()

    def set_epoch(self, epoch: int) -> None:
        """Begins with the order and the choices of an epoch, unless that is what is being read."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin()

    def first_longer_than(self, limit: int) -> tuple[int, int] | None:
        """As of [`PromptDataset`], among the first rows; that others may be longer is said."""
        found = self._renderer.first_longer_than(limit)
        if found is None and (self._limit is None or self._limit > limit):
            logger.warning_once(
                f"Only the first {len(self._renderer)} prompts of the stream could be measured: a longer one than "
                f"{limit} tokens leaves no room for a completion and would end the run when it comes. Set "
                f"max_prompt_length to at most {limit}; such prompts are then cut or dropped (overlong_prompts)."
            )
        return found

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Reads on to a prompt and renders it.

        Args:
            number (`int`): Its number in the order of training.

        Returns:
            `dict`: As of [`PromptDataset`]; `index` is the row's number in the stream.
        """
        if number < self._next:
            self._begin()
        if number - self._next > SHUFFLE_BUFFER:
            logger.warning("Reading %d prompts of the stream up to the place of this run.", number - self._next)
        epoch, index, row = next(islice(self._order, number - self._next, None))
        self._next = number + 1
        return self._renderer.example(row, index, epoch)

    def _begin(self) -> None:
        self._order, self._next = self._passes(), 0

    def _passes(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        for epoch in count(self._epoch):
            found = 0
            for index, row in self._one_pass(epoch):
                found += 1
                yield epoch, index, row
            if found == 0:
                raise PromptError(
                    f"The stream ({type(self._dataset).__name__}) gave no usable row in pass {epoch}, so training "
                    "cannot go on. A stream from a generator object can be read only once: give one that can be read "
                    "again (such as `datasets.IterableDataset.from_generator`), or lower max_steps. With "
                    "overlong_prompts='drop', raise max_prompt_length."
                )
            logger.warning_once(f"The stream ended after {found} prompts and begins again, until max_steps are done.")

    def _one_pass(self, epoch: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        opened, self._opened = self._opened, None
        numbered = enumerate(opened or stream_rows(self._dataset, epoch))
        if self._drops:
            numbered = ((i, row) for i, row in numbered if self._renderer.longest(row, i) <= self._limit)
        return _shuffled(numbered, f"{self._seed}/{epoch}") if self._shuffle else numbered


def stream_rows(dataset: Iterable[Mapping[str, Any]], epoch: int = 0) -> Iterator[Mapping[str, Any]]:
    """Reads a stream, without the null fields that rows stored as Arrow have from each other.

    Args:
        dataset (`Iterable[Mapping]`): The stream.
        epoch (`int`, *optional*, defaults to 0): Passed to its `set_epoch`, if it has one.

    Raises:
        PromptError: Naming the row at which the stream fails, or that is not a mapping.
    """
    if isinstance(dataset, datasets.IterableDataset):
        dataset = dataset.with_format(None)
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    rows = iter(dataset)
    for index in count():
        try:
            row = next(rows, None)
        except Exception as error:
            raise PromptError(
                f"row {index}: the stream ({type(dataset).__name__}) failed there ({type(error).__name__}: {error}). "
                "Correct what produces its rows, and resume from the last checkpoint."
            ) from error
        if row is None:
            return
        if not isinstance(row, Mapping):
            raise PromptError(f"row {index} is a {type(row).__name__}, expected a dict such as {{'prompt': '...'}}.")
        is_arrow = isinstance(dataset, datasets.IterableDataset)
        yield {name: without_nulls(value) for name, value in row.items()} if is_arrow else row


def read_whole(dataset: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Reads all rows of a stream, and says so if they are many.

    Args:
        dataset (`Iterable[Mapping]`): The stream.
        name (`str`): The argument that it is, for messages.
    """
    rows = []
    for row in stream_rows(dataset):
        rows.append(row)
        if len(rows) == _MANY:
            logger.warning(
                "%s is a stream that is read whole, because each of its prompts is counted once, and %d rows have "
                "come so far. If it does not end, pass `%s.take(n)`.",
                name,
                _MANY,
                name,
            )
    return rows


def _shuffled(rows: Iterator[Any], seed: str) -> Iterator[Any]:
    chosen = random.Random(seed)
    buffer = list(islice(rows, SHUFFLE_BUFFER))
    for row in rows:
        place = chosen.randrange(len(buffer))
        yield buffer[place]
        buffer[place] = row
    chosen.shuffle(buffer)
    yield from buffer
