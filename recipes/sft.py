# SPDX-License-Identifier: Apache-2.0
"""Supervised training of a causal LM on MiniMind's data with trl's SFTTrainer: pretraining and instruction tuning.

    python recipes/sft.py --model_name_or_path FOLDER --dataset_name pretrain.jsonl --output_dir outputs/pretrained
    python recipes/sft.py --model_name_or_path outputs/pretrained --dataset_name sft.jsonl --output_dir outputs/sft

Rows with `text` are learned as a whole. In rows with `conversations` (or `messages`) every assistant turn is learned,
including thoughts (`reasoning_content`, or <think> in the content) and `tool_calls`, and nothing else: the messages of
tools are given. The tools are a column `tools`, or those of the system message. Every setting of trl's SFTConfig works
as a flag or in the yaml file of --config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from before_rl import DataArguments, Recipe
from running import run
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from minimind_hf.data import PromptError
from minimind_hf.data.conversations import parse_messages
from minimind_hf.data.supervised import ConversationRenderer, check_example, encode_conversation, encode_text


@dataclass
class SFTArguments(DataArguments):
    """The data to train on."""

    system_prompt_ratio: float = field(
        default=0.0, metadata={"help": "Share of the conversations without a system prompt that get one at random."}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe("sft", SFTConfig, arguments, SFTArguments, doc=__doc__)
    ratio, seed = recipe.data.system_prompt_ratio, recipe.args.seed
    if not 0 <= ratio <= 1:
        raise ValueError(f"--system_prompt_ratio is {ratio}; it is a share and must be between 0 and 1.")
    renderer = ConversationRenderer(recipe.tokenizer)

    def check(row: Mapping[str, Any], where: str) -> str:
        kind = check_example(row, where)
        if kind != "text":
            _check_turns(row[kind], where)
        return kind

    def encode(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        kind = check_example(row, f"row {index}")
        if kind == "text":
            return encode_text(row, recipe.tokenizer)
        return encode_conversation(row, index, renderer, kind, ratio, seed)

    recipe.run(SFTTrainer, recipe.load_model(AutoModelForCausalLM), check, encode)


def _check_turns(messages: Any, where: str) -> None:
    """Refuses an assistant's turn that says nothing: the model would learn to end at once."""
    for number, message in enumerate(parse_messages(messages, where)[0]):
        said = [message.get(name) for name in ("content", "reasoning_content", "tool_calls")]
        if message["role"] == "assistant" and not any(
            part.strip() if isinstance(part, str) else part for part in said
        ):
            raise PromptError(
                f"{where}: message {number}, of the assistant, is empty, and the model would learn to end at once. "
                "Give it content, reasoning_content or tool_calls, or remove the row."
            )


if __name__ == "__main__":
    run(main)
