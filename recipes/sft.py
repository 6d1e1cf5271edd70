# SPDX-License-Identifier: Apache-2.0
"""Supervised training of a causal LM on MiniMind's data by trl's SFTTrainer: pretraining and instruction tuning.

    python recipes/sft.py --model_name_or_path FOLDER --dataset_name pretrain.jsonl --output_dir outputs/pretrained
    python recipes/sft.py --model_name_or_path outputs/pretrained --dataset_name sft.jsonl --output_dir outputs/sft

Rows with `text` are learned as a whole. Of rows with `conversations` (or `messages`) every assistant turn is learned,
thoughts (`reasoning_content`, or <think> in the content) and `tool_calls` included; the system message may bring
`tools`. Any setting of trl's SFTConfig may be given by its flag or in the yaml file of --config.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import datasets
from before_rl import DataArguments, Recipe
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from minimind_hf.data.supervised import (
    ConversationRenderer,
    check_example,
    encode_conversation,
    encode_text,
    example_kind,
)


@dataclass
class SFTArguments(DataArguments):
    """What to train on."""

    system_prompt_ratio: float = field(
        default=0.0, metadata={"help": "Share of the conversations without a system prompt that get one at random."}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe(SFTConfig, arguments, SFTArguments)
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(rows: datasets.Dataset) -> datasets.Dataset:
        kind = example_kind(rows.column_names)
        options = {"remove_columns": rows.column_names, "desc": "Encoding"}
        if kind == "text":
            return rows.map(lambda row: encode_text(row, recipe.tokenizer), **options)
        ratio, seed = recipe.data.system_prompt_ratio, recipe.args.seed
        return rows.map(
            lambda row, index: encode_conversation(row, index, renderer, kind, ratio, seed),
            with_indices=True,
            **options,
        )

    trainer = SFTTrainer(
        model=recipe.load_model(AutoModelForCausalLM),
        args=recipe.args,
        processing_class=recipe.tokenizer,
        peft_config=recipe.peft_config,
        **recipe.load_data(check_example, encode),
    )
    recipe.run(trainer, "sft")


if __name__ == "__main__":
    main()
