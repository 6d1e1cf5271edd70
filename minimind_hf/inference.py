# SPDX-License-Identifier: Apache-2.0
"""Loads a trained folder for inference, and separates thought and answer while text arrives."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .paths import check_loadable, check_nothing_missing, check_tokenizer_files

THINK_START, THINK_END = "<think>", "</think>"


def load_for_inference(
    path: str | Path, *, device: str | None = None, dtype: str = "auto", trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a model, or adapters with their base, and the tokenizer.

    Args:
        path (`str` or `Path`): Folder or Hub name.
        device (`str`, *optional*): Device of the model. Default: the first GPU, or the CPU if there is none.
        dtype (`str`): `"auto"` for the dtype of the saved weights, or `"float32"`, `"bfloat16"`, `"float16"`.
        trust_remote_code (`bool`): Run code from the folder.

    Returns:
        `tuple`: The model in evaluation mode, and its tokenizer.

    Raises:
        ValueError: If the path is a .pth file, or cannot be loaded.
    """
    check_loadable(path)
    check_tokenizer_files(path)
    device = usable_device(device)
    code = {"trust_remote_code": trust_remote_code}
    model, info = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **code)
    check_nothing_missing(path, model, info)
    return model.to(device).eval(), AutoTokenizer.from_pretrained(path, **code)


def usable_device(device: str | None) -> str:
    """Returns the device to use; by default the first GPU, or the CPU if there is none.

    Raises:
        ValueError: If the device does not exist here.
    """
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"The device {device!r} cannot be used here ({reason}). Try another, such as cpu.") from error
    return device


class Piece(NamedTuple):
    """A piece of text, and whether it belongs to a thought."""

    text: str
    is_thought: bool


class ThoughtSplitter:
    """Splits text that arrives in parts at `<think>` and `</think>`, and removes these tags.

    Args:
        inside (`bool`): Whether the prompt already opens a thought.
    """

    def __init__(self, inside: bool = False):
        self._inside = inside
        self._held = ""  # a possible beginning of a tag

    def feed(self, text: str) -> Iterator[Piece]:
        """Yields the pieces that are certain so far."""
        text = self._held + text
        while (position := text.find(self._tag)) >= 0:
            yield from self._piece(text[:position])
            text = text[position + len(self._tag) :]
            self._inside = not self._inside
        keep = next((n for n in range(len(self._tag) - 1, 0, -1) if text.endswith(self._tag[:n])), 0)
        self._held = text[len(text) - keep :] if keep else ""
        yield from self._piece(text[: len(text) - keep])

    def end(self) -> Iterator[Piece]:
        """Yields the text that was held back."""
        held, self._held = self._held, ""
        yield from self._piece(held)

    @property
    def _tag(self) -> str:
        return THINK_END if self._inside else THINK_START

    def _piece(self, text: str) -> Iterator[Piece]:
        if text:
            yield Piece(text, self._inside)


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends inside a thought."""
    return prompt.rfind(THINK_START) > prompt.rfind(THINK_END)
