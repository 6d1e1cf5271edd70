# SPDX-License-Identifier: Apache-2.0
"""A model of MiniMind's architecture that calls a tool in every turn, though it has learned nothing.

Each token of a scripted turn determines the next: the embeddings of these tokens are so large that the layers hardly
turn them, and the head's row of each is the embedding of the token before it. The layers have random weights, and cost
what those of a trained model would.
"""

import random
from pydoc_data.topics import topics

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from workloads import WORKLOADS

from minimind_hf import MiniMindConfig, MiniMindForCausalLM

VOCAB_SIZE = 6400
END = "<|im_end|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CALL = ('\n{"name": "search_notes", ', '"arguments": {"query": "northern harbour", ', '"limit": %d}}\n')
# Sizes of the rows of scripted tokens, of which the first is relative to a usual embedding of unit variance.
EMBEDDING_SIZE, HEAD_SIZE = 4.0, 2.0


def search_notes(query: str, limit: int) -> str:
    """Searches the notes of this workspace and returns the lines that match best.

    Args:
        query: Words that have to appear in a note, in any order.
        limit: Most lines to return, counted from the best match.
    """
    lines = [f"{day} March, {query}: a boat came in with salt and wool, and left before the tide." for day in range(3)]
    return "\n".join(lines[:limit])


def convert_amount(amount: float, source: str, target: str) -> str:
    """Converts an amount of money between two currencies at the rate of the last day.

    Args:
        amount: How much to convert, in units of the source currency.
        source: The currency of the amount, as three letters.
        target: The currency that is wanted, as three letters.
    """
    return f"{amount} {source} in {target}"


TOOLS = [search_notes, convert_amount]


def scripted_call(answer_lines: int) -> list[str]:
    """The tokens of a call of `search_notes` that asks for so many lines, up to three."""
    return ["<tool_call>", *CALL[:-1], CALL[-1] % answer_lines, "</tool_call>"]


def make_tokenizer(template: str, call: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 6400 tokens, learned from Python's own help texts, with the parts of the call as tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    added = ("<|pad|>", "<|im_start|>", END, *TAGS, *call[1:-1])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(topics.values(), trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added[:3]])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added[3:]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|pad|>", eos_token=END)
    tokenizer.chat_template = template
    return tokenizer


def scripted_turn(tokenizer: PreTrainedTokenizerFast, call: list[str], length: int) -> list[int]:
    """The ids of a turn: words, the call, and the end. No id occurs twice."""
    call = tokenizer.convert_tokens_to_ids([*call, END])
    words = sorted(i for token, i in tokenizer.get_vocab().items() if token[:1] == "Ġ" and token[1:].isalpha())
    return random.Random(0).sample(words, length - len(call)) + call


@torch.no_grad()
def make_model(
    workload: str, tokenizer: PreTrainedTokenizerFast, turn: list[int], before: list[int]
) -> MiniMindForCausalLM:
    """A model of the workload's size that says the turn after each of the tokens `before`."""
    torch.manual_seed(0)
    shape = WORKLOADS[workload]
    model = MiniMindForCausalLM(
        MiniMindConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_layers,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    rows = torch.randn(len(turn), shape.hidden_size) * EMBEDDING_SIZE  # of what stands before each token of the turn
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    embedding[before] = rows[0]
    embedding[turn[:-1]] = rows[1:]
    head[turn] = rows / rows.norm(dim=1, keepdim=True) * HEAD_SIZE
    return model
