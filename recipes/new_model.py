# SPDX-License-Identifier: Apache-2.0
"""Builds an untrained MiniMind with a tokenizer trained on your texts: the start of your own journey.

    python recipes/new_model.py FOLDER --corpus pretrain.jsonl sft.jsonl --vocab_size 1024
    python recipes/new_model.py FOLDER --tokenizer path/to/minimind/model --config hidden_size=768 num_hidden_layers=8

The tokenizer is a byte-level BPE with MiniMind's special tokens at MiniMind's ids, one token per digit, and MiniMind's
conversation format (recipes/journey/chat_template.jinja), including tools and thinking.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from minimind_hf import MiniMindConfig, MiniMindForCausalLM
from minimind_hf.commands.convert import parse_config_values
from minimind_hf.models.convert import check_overrides
from minimind_hf.paths import check_model_path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # pad, bos and eos, with MiniMind's ids 0, 1 and 2
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE = Path(__file__).parent / "journey" / "chat_template.jinja"
ROLES = "system\nuser\nassistant\ntool\n"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE.

    Args:
        texts (`Iterable[str]`): Texts to learn merges from.
        vocab_size (`int`): Tokens, including special ones and marks; fewer if the texts yield fewer.

    Returns:
        `PreTrainedTokenizerFast`: With MiniMind's special tokens and conversation format.

    Raises:
        ValueError: If the vocabulary has no room for every byte.
    """
    smallest = 256 + len(SPECIAL_TOKENS) + len(MARKS)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size is {vocab_size}, but bytes, special tokens and marks need {smallest}.")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    pad, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    )


def read_texts(paths: Sequence[Path]) -> Iterator[str]:
    """Yields every string value of jsonl files, whatever their format, and the names of the roles."""
    yield ROLES
    for path in paths:
        is_blank = True
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                texts = _strings(_parsed(line, f"{path}, line {number}")) if line.strip() else ()
                for text in texts:
                    is_blank = is_blank and not text.strip()
                    yield text
        if is_blank:
            raise ValueError(f"--corpus {path}: there is no text in it to learn tokens from. Give another file.")


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON in UTF-8 ({error}). Correct or remove the line.") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([item for key, item in value.items() if key != "role"])
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def make_model(tokenizer: PreTrainedTokenizerBase, seed: int, **config: Any) -> MiniMindForCausalLM:
    """Builds an untrained MiniMind for a tokenizer; `config` goes to [`MiniMindConfig`]."""
    torch.manual_seed(seed)
    ends = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return MiniMindForCausalLM(MiniMindConfig(vocab_size=len(tokenizer), **ends | config))


def _check(options: argparse.Namespace) -> None:
    """Refuses options that would fail, or overwrite files, only after the tokenizer has been trained."""
    folder = options.folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder to write to.")
    if folder.is_dir() and any(folder.iterdir()) and not options.overwrite:
        raise ValueError(f"{folder} is not empty; choose another folder, or allow it with --overwrite.")
    if "vocab_size" in check_overrides(parse_config_values(options.config)):
        raise ValueError("--config vocab_size: it follows from the tokenizer; give --vocab_size to train one.")
    for path in options.corpus or []:
        if not path.is_file() or not path.stat().st_size:
            raise ValueError(f"--corpus {path}: {'the file is empty' if path.is_file() else 'there is no such file'}.")
    if options.tokenizer:
        check_model_path(options.tokenizer, "tokenizer")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Builds an untrained MiniMind and its tokenizer.")
    parser.add_argument("folder", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, nargs="+", help="jsonl files to train a tokenizer on")
    source.add_argument("--tokenizer", help="folder or hub name of a tokenizer to use unchanged")
    parser.add_argument("--vocab_size", type=int, default=6400)
    parser.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE", help="values of MiniMindConfig")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="write into a folder that is not empty")
    options = parser.parse_args(arguments)
    _check(options)
    if options.corpus:
        tokenizer = train_tokenizer(read_texts(options.corpus), options.vocab_size)
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    model = make_model(tokenizer, options.seed, **check_overrides(parse_config_values(options.config)))
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    size = f"{model.num_parameters() / 1e6:.2f} million parameters, {len(tokenizer)} tokens"
    print(f"wrote {options.folder}: {size}")


if __name__ == "__main__":
    main()
