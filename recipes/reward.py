# SPDX-License-Identifier: Apache-2.0
"""Trains a reward model on preferences in MiniMind's format by trl's RewardTrainer.

    python recipes/reward.py --model_name_or_path outputs/sft --dataset_name dpo.jsonl --output_dir outputs/reward
    python recipes/grpo.py ... --reward_model_name_or_path outputs/reward

The model becomes a sequence classifier with one label, whose head is new. It learns what it will be asked for: the
rendering is that of `minimind_hf.rewards.RewardModel`, which leaves thoughts out. Rows are those of recipes/dpo.py.
Any setting of trl's RewardConfig may be given by its flag or in the yaml file of --config.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import datasets
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
    recipe = Recipe(RewardConfig, arguments, RewardArguments)
    renderer = ConversationRenderer(recipe.tokenizer)

    def encode(rows: datasets.Dataset) -> datasets.Dataset:
        return rows.map(
            lambda row, index: preference_ids(row, index, renderer, recipe.data.answer_only),
            with_indices=True,
            remove_columns=rows.column_names,
            desc="Encoding",
        )

    model = recipe.load_model(AutoModelForSequenceClassification, num_labels=1)
    model.config.pad_token_id = recipe.tokenizer.pad_token_id  # the score is read at the last token that is not this
    trainer = RewardTrainer(
        model=model,
        args=recipe.args,
        processing_class=recipe.tokenizer,
        peft_config=recipe.peft_config,
        **recipe.load_data(parse_preference, encode),
    )
    recipe.run(trainer, "reward")


if __name__ == "__main__":
    main()
