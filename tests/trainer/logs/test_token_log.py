# SPDX-License-Identifier: Apache-2.0
"""Completions token by token: which are kept, and their numbers against a plain forward pass and by hand."""

import copy

import pytest
import torch
from tiny import GRPO, PPO, make_policy, make_prompts, make_tokenizer, without_ties

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.reports.record import read_lines
from minimind_hf.trainer.logs.tokens import pieces_of

TOKENIZER = make_tokenizer()


def rows_of(folder, config_class, trainer_class, settings, **changes) -> list[dict]:
    config = config_class(output_dir=str(folder), **settings | changes)
    policy = make_policy()
    start = copy.deepcopy(policy)
    trainer = trainer_class(
        model=policy,
        reward_funcs=without_ties,
        args=config,
        train_dataset=make_prompts(12),
        processing_class=TOKENIZER,
    )
    trainer.train()
    return start, read_lines(folder / "samples" / "tokens.jsonl")


def plain_logps(model, prompt: str, text_ids: list[int], temperature: float) -> list[float]:
    prompt_ids = TOKENIZER(prompt, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + text_ids])).logits[0, len(prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1)[range(len(text_ids)), text_ids].tolist()


def test_numbers_are_those_of_the_update(tmp_path):
    changes = {"max_steps": 9, "beta": 0.1, "temperature": 0.7, "max_completion_length": 6}
    start, rows = rows_of(tmp_path, GRPOConfig, GRPOTrainer, GRPO, **changes)
    assert [row["step"] for row in rows] == [1] * 4 + [2] * 4 + [4] * 4 + [8] * 4 + [9] * 4
    for row in rows[:4]:
        ids = TOKENIZER("".join(row["tokens"]), add_special_tokens=False)["input_ids"]
        if len(ids) != len(row["tokens"]):
            continue  # bytes that are no text
        logps = plain_logps(start, row["prompt"], ids, 0.7)
        assert row["logp"] == pytest.approx(logps, abs=1e-4) and row["engine_logp"] == pytest.approx(logps, abs=1e-4)
        assert row["ratio"] == pytest.approx([1.0] * len(ids), abs=1e-4)  # nothing has moved yet
        assert row["kl"] == pytest.approx([0.0] * len(ids), abs=1e-6)
        assert row["advantage_of_token"] == pytest.approx([row["advantage"]] * len(ids))
    assert max(value for row in rows[-4:] for value in row["kl"]) > 0.01
    by_step = [row["advantage"] for row in rows[:4]]
    assert by_step == sorted(by_step) and by_step[1] < 0 < by_step[2]


def test_the_last_pass_counts_and_the_critic_speaks(tmp_path):
    changes = {"max_steps": 4, "ppo_update_iters": 2, "mini_batch_size": 4, "gamma": 1.0, "lam": 1.0}
    _, rows = rows_of(tmp_path, PPOConfig, PPOTrainer, PPO, **changes)
    assert [row["step"] for row in rows] == [1] * 4  # one rollout of four updates, which is the last one too
    for row in rows:
        length = len(row["tokens"])
        assert {len(row[name]) for name in ("logp", "ratio", "value", "return", "advantage_of_token", "kl")} == {
            length
        }
        assert row["return"] == pytest.approx([row["reward"]] * length, abs=1e-3)  # undiscounted, of a single reward
    assert any(abs(ratio - 1) > 1e-3 for row in rows for ratio in row["ratio"])


def test_characters_of_several_tokens_are_shown_once():
    ids = TOKENIZER("aé你好!", add_special_tokens=False)["input_ids"]
    assert pieces_of(ids, TOKENIZER) == ["a", "", "é", "", "", "你", "", "", "好", "!"]
    assert "".join(pieces_of(ids[:-2], TOKENIZER)) == TOKENIZER.decode(ids[:-2])  # cut within a character
    assert pieces_of([], TOKENIZER) == []
