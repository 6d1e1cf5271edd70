# SPDX-License-Identifier: Apache-2.0
"""What the tasks that need nothing to download share: the model, how it is taught at first, and a look at a folder."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import chain, islice, repeat
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)

from minimind_hf import MiniMindConfig, MiniMindForCausalLM
from minimind_hf.language import said

TEMPERATURE = 0.8
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # pad, bos and eos, with MiniMind's ids 0, 1 and 2


def train_tokenizer(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Trains a byte-level BPE with the special tokens, in place."""
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def as_pretrained(tokenizer: Tokenizer, chat_template: str) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers knows one."""
    pad, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerBase, seed: int) -> MiniMindForCausalLM:
    """Returns an untrained MiniMind of less than a million parameters."""
    torch.manual_seed(seed)
    hidden_size = 128
    config = MiniMindConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=hidden_size**-0.5,  # a model this narrow learns twice as fast with it as with 0.02
    )
    return MiniMindForCausalLM(config)


def show_examples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[dict[str, list[int]]],
    max_steps: int,
    seed: int,
    knows_enough: Callable[[int], bool],
    look_every: int,
) -> None:
    """Trains on examples until the model knows enough, or for `max_steps`.

    A plain loop, not a Trainer: it runs only on the main process while the others wait, however they were launched.

    Args:
        model (`PreTrainedModel`): Trained in place.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        examples (`Sequence[dict]`): Token ids and labels.
        max_steps (`int`): Updates, of 32 examples each, at most.
        seed (`int`): Seed of the order of the examples.
        knows_enough (`Callable[[int], bool]`): Asked with the number of the step, every `look_every` steps.
        look_every (`int`): Steps between two looks.
    """
    text = "learning from {count} worked examples first, in at most {steps} steps"
    print(said(text, count=f"{len(examples):,}", steps=max_steps), flush=True)
    loader = DataLoader(
        examples,
        batch_size=32,
        shuffle=True,
        drop_last=True,
        collate_fn=DataCollatorForSeq2Seq(tokenizer),
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=20, num_training_steps=max_steps)
    model.train()
    for step, batch in enumerate(islice(chain.from_iterable(repeat(loader)), max_steps), start=1):
        model(**batch.to(model.device)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % look_every == 0 and knows_enough(step):
            return


def run_in_fresh_process(script: str, *arguments: str, folder: str | Path) -> str:
    """Runs a script that loads a folder, prints its lines but the last, and returns that.

    Raises:
        RuntimeError: If the process fails, with the end of its output.
    """
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{folder} could not be loaded and tested in a fresh process:\n{done.stderr[-2000:]}")
    *shown, result = done.stdout.splitlines()
    print("\n".join(shown), flush=True)
    return result
