# SPDX-License-Identifier: Apache-2.0
"""Preference training of a causal LM on MiniMind's data with trl's DPOTrainer.

    python recipes/dpo.py --model_name_or_path outputs/sft --dataset_name dpo.jsonl --output_dir outputs/dpo

A row has `chosen` and `rejected`: two conversations that differ only in their last message, or two continuations of a
common `prompt`. The system message may contain `tools`. Every setting of trl's DPOConfig works as a flag or in the
yaml file of --config.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from before_rl import Recipe
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from minimind_hf.data.supervised import ConversationRenderer, parse_preference, preference_texts


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe("dpo", DPOConfig, arguments)
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return preference_texts(row, index, renderer)

    recipe.run(DPOTrainer, recipe.load_model(AutoModelForCausalLM), parse_preference, encode)


if __name__ == "__main__":
    main()
