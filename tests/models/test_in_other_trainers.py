# SPDX-License-Identifier: Apache-2.0
"""What transformers' and trl's own trainers do with MiniMind."""

import pytest
import torch
import trl
from datasets import Dataset
from tiny import QUIET, make_policy, make_prompts, make_tokenizer
from torch.nn.functional import log_softmax
from transformers import Trainer, TrainingArguments

SETTINGS = {**QUIET, "max_steps": 1}


@pytest.mark.parametrize("use_moe", [False, True], ids=["dense", "moe"])
def test_trl_trains_it_without_being_told_about_routers(tmp_path, use_moe):
    model = make_policy(use_moe=use_moe)
    trainer = trl.SFTTrainer(
        model,
        trl.SFTConfig(output_dir=str(tmp_path), bf16=False, max_length=16, **SETTINGS),
        train_dataset=Dataset.from_list([{"text": row["prompt"] * 3} for row in make_prompts(8)]),
        processing_class=make_tokenizer(),
    )
    assert trainer.aux_loss_enabled == use_moe
    trainer.train()
    # A second trainer of trl on the same model: the first may not have left anything that looks like a router.
    again = trl.SFTTrainer(
        model,
        trl.SFTConfig(output_dir=str(tmp_path), bf16=False, max_length=16, **SETTINGS),
        train_dataset=Dataset.from_list([{"text": "abc"}] * 8),
        processing_class=make_tokenizer(),
    )
    assert again.aux_loss_enabled == use_moe


def test_label_smoothing_of_transformers_shifts_the_labels(tmp_path):
    model = make_policy()
    args = TrainingArguments(output_dir=str(tmp_path), label_smoothing_factor=0.1, **SETTINGS)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    loss = Trainer(model, args).compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    logps = log_softmax(model(ids).logits[:, :-1].double(), dim=-1)
    right = -logps.gather(2, ids[:, 1:, None]).mean()
    expected = 0.9 * right + 0.1 * -logps.mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
