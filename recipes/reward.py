# SPDX-License-Identifier: Apache-2.0
"""Trains a reward model on preferences in MiniMind's format by trl's RewardTrainer.

    python recipes/reward.py --model_name_or_path outputs/sft --dataset_name dpo.jsonl --output_dir outputs/reward
    python recipes/grpo.py ... --reward_model_name_or_path outputs/reward

The model becomes a sequence classifier with one label, whose head is new. It learns what it will be asked for: the
rendering is that of `minimind_hf.rewards.RewardModel`, which leaves thoughts out. Rows are those of recipes/dpo.py.
Any setting of trl's RewardConfig may be given by its flag or in the yaml file of --config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from before_rl import DataArguments, Recipe
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from minimind_hf.data.supervised import ConversationRenderer, parse_preference, preference_ids


@dataclass
class RewardArguments(DataArguments):
    """What to train on."""

    answer_only: bool = field(
        default=True, metadata={"help": "Leave the thoughts of answers out, as RewardModel does when it scores."}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    recipe = Recipe("reward", RewardConfig, arguments, RewardArguments)
    recipe.model_config.lora_task_type = "SEQ_CLS"  # adapters bring the new head with them
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return preference_ids(row, index, renderer, recipe.data.answer_only)

    model = recipe.load_model(AutoModelForSequenceClassification, num_labels=1)
    model.config.pad_token_id = recipe.tokenizer.pad_token_id  # the score is read at the last token that is not this
    recipe.run(RewardTrainer, model, parse_preference, encode)


if __name__ == "__main__":
    main()
