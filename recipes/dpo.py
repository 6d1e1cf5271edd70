# SPDX-License-Identifier: Apache-2.0
"""Preference training of a causal LM on MiniMind's data with trl's DPOTrainer.

    python recipes/dpo.py --model_name_or_path outputs/sft --dataset_name dpo.jsonl --output_dir outputs/dpo

A row has `chosen` and `rejected`: two conversations that part at a turn of the assistant, or two continuations of a
common `prompt`. They may hold `tool_calls` and the answers of tools, which are given and not compared; the tools are a
column `tools`, or those of the system message. Every setting of trl's DPOConfig works as a flag or in the yaml file of
--config.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch
from before_rl import Recipe
from running import run
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from minimind_hf.data.preferences import encode_preference, parse_preference
from minimind_hf.data.supervised import ConversationRenderer

MASKS = ("chosen_mask", "rejected_mask")


class TurnsCollator(DataCollatorForPreference):
    """trl's batches of pairs, in which the answers of tools are not compared."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        cut = slice(-self.max_length, None) if self.truncation_mode == "keep_end" else slice(self.max_length)
        rows = ([0] * len(each["prompt_ids"]) + each[name] for name in MASKS for each in examples)
        for mask, row in zip(batch["completion_mask"], rows, strict=True):
            row = row if self.max_length is None else row[cut]
            mask[: len(row)] = torch.tensor(row)
        return batch


class TurnsTrainer(DPOTrainer):
    """trl's trainer for pairs that are encoded already, with masks."""

    def __init__(self, *, args: DPOConfig, processing_class: PreTrainedTokenizerBase, **kwargs: Any):
        if processing_class.pad_token is None:
            processing_class.pad_token = processing_class.eos_token
        collator = TurnsCollator(
            pad_token_id=processing_class.pad_token_id,
            max_length=args.max_length,
            truncation_mode=args.truncation_mode,
            pad_to_multiple_of=args.pad_to_multiple_of,
        )
        super().__init__(args=args, processing_class=processing_class, data_collator=collator, **kwargs)

    def _prepare_dataset(
        self, dataset: datasets.Dataset, processing_class: PreTrainedTokenizerBase, args: DPOConfig, name: str
    ) -> datasets.Dataset:
        """Drops pairs of which `max_length` leaves nothing to compare, as trl does."""
        if args.max_length is None or args.truncation_mode == "keep_end":
            return dataset
        return dataset.filter(lambda row: len(row["prompt_ids"]) < args.max_length, desc="Filtering")

    def _set_signature_columns_if_needed(self) -> None:
        is_first = self._signature_columns is None
        super()._set_signature_columns_if_needed()
        if is_first:
            self._signature_columns += MASKS


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe("dpo", DPOConfig, arguments, doc=__doc__)
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return encode_preference(row, index, renderer)

    recipe.run(TurnsTrainer, recipe.load_model(AutoModelForCausalLM), parse_preference, encode)


if __name__ == "__main__":
    run(main)
