# SPDX-License-Identifier: Apache-2.0
"""Trains a reward model on preferences in MiniMind's format with trl's RewardTrainer.

    python recipes/reward.py --model_name_or_path outputs/sft --dataset_name dpo.jsonl --output_dir outputs/reward
    python recipes/grpo.py ... --reward_model_name_or_path outputs/reward

The model becomes a sequence classifier with one label and a new head. It is trained on text as it will see it later:
rendered as `minimind_hf.rewards.RewardModel` does, without thoughts. Rows have the format of recipes/dpo.py. Every
setting of trl's RewardConfig works as a flag or in the yaml file of --config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from before_rl import DataArguments, Recipe
from running import run
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from minimind_hf.data.preferences import parse_preference, preference_ids
from minimind_hf.data.supervised import ConversationRenderer


@dataclass
class RewardArguments(DataArguments):
    """The data to train on."""

    answer_only: bool = field(
        default=True, metadata={"help": "Leave out the thoughts of answers, as RewardModel does."}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe("reward", RewardConfig, arguments, RewardArguments, doc=__doc__)
    recipe.model_config.lora_task_type = "SEQ_CLS"  # so the adapters include the new head
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return preference_ids(row, index, renderer, recipe.data.answer_only)

    model = recipe.load_model(AutoModelForSequenceClassification, num_labels=1)
    model.config.pad_token_id = recipe.tokenizer.pad_token_id  # the reward is read at the last token before padding
    start, out = recipe.model_config.model_name_or_path, recipe.args.output_dir
    used = ["grpo", "--model_name_or_path", start, "--dataset_name", "PROMPTS.jsonl"]
    recipe.run(RewardTrainer, model, parse_preference, encode, [*used, "--reward_model_name_or_path", out])


if __name__ == "__main__":
    run(main)
