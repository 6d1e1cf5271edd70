# SPDX-License-Identifier: Apache-2.0
"""Probe prompts: when they are answered, with which random numbers, and that they leave a run as it is."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from naming import raises_naming
from tiny import GRPO, PPO, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.reports.record import read_lines

KINDS = {"grpo": (GRPOConfig, GRPOTrainer, GRPO), "ppo": (PPOConfig, PPOTrainer, PPO)}
TIMED = ("seconds/", "tokens_per_second", "train_")


def noisy(completion_ids, log_metric, **columns) -> list[float]:
    """A reward that draws from every generator that a run could share with it."""
    log_metric("calls", 1.0)
    noise = random.random() + np.random.rand() + torch.rand(()).item()
    return [share + 0.01 * noise for share in share_of_a(completion_ids)]


def trainer_of(kind: str, folder: Path, reward=noisy, train=None, evaluated=None, **changes):
    config_class, trainer_class, settings = KINDS[kind]
    config = config_class(output_dir=str(folder), **settings | {"max_steps": 5} | changes)
    return trainer_class(
        model=make_policy(),
        reward_funcs=reward,
        args=config,
        train_dataset=train or make_prompts(12),
        eval_dataset=evaluated,
        processing_class=make_tokenizer(),
    )


def answers_of(folder: Path) -> list[dict]:
    return read_lines(folder / "samples" / "probes.jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_with_and_without_probes(kind, tmp_path):
    logs, weights = [], []
    for name, number in (("without", 0), ("with", 3)):
        trainer = trainer_of(kind, tmp_path / name, probe_prompts=number, probe_steps=2)
        trainer.train()
        logs.append([{k: v for k, v in log.items() if not k.startswith(TIMED)} for log in trainer.state.log_history])
        weights.append(trainer.policy.state_dict())
    assert logs[0] == logs[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert answers_of(tmp_path / "without") == []
    assert [row["step"] for row in answers_of(tmp_path / "with")] == [0] * 3 + [2] * 3 + [4] * 3 + [5] * 3


def test_answers_differ_only_by_what_was_learned(tmp_path):
    held_out = make_prompts(4, seed=9)
    trainer_of(
        "grpo", tmp_path / "still", evaluated=held_out, probe_prompts=2, probe_steps=1, learning_rate=0.0
    ).train()
    rows = answers_of(tmp_path / "still")
    assert {row["prompt"] for row in rows} == {row["prompt"] for row in held_out[:2]}
    for probe in (0, 1):
        assert len({row["completion"] for row in rows if row["probe"] == probe}) == 1
    trainer_of("grpo", tmp_path / "moving", evaluated=held_out, probe_prompts=2, probe_steps=5).train()
    first, last = answers_of(tmp_path / "moving")[:2], answers_of(tmp_path / "moving")[2:]
    assert [row["completion"] for row in first] == [row["completion"] for row in rows[:2]]
    assert [row["completion"] for row in first] != [row["completion"] for row in last]
    assert set(first[0]["signals"]) == {"noisy"} and "advantage" not in first[0]


def test_a_resumed_run_has_the_answers_of_one_that_never_stopped(tmp_path):
    options = {"probe_prompts": 2, "probe_steps": 2, "reward": share_of_a}
    trainer_of("grpo", tmp_path / "whole", **options).train()
    trainer = trainer_of("grpo", tmp_path / "parts", save_strategy="steps", save_steps=3, **options)
    trainer.train()
    checkpoint = str(tmp_path / "parts" / "checkpoint-3")
    trainer_of("grpo", tmp_path / "parts", **options).train(resume_from_checkpoint=checkpoint)
    assert answers_of(tmp_path / "parts") == answers_of(tmp_path / "whole") != []


def test_prompts_that_do_not_stay_the_same_are_refused(tmp_path):
    stream = Dataset.from_list(make_prompts(8)).to_iterable_dataset()
    with raises_naming(ValueError, "probe_prompts", 2, "stream", "eval_dataset"):
        trainer_of("grpo", tmp_path / "stream", train=stream, probe_prompts=2)
    trainer_of("grpo", tmp_path / "stream", train=stream, evaluated=make_prompts(2), probe_prompts=2)
    with raises_naming(ValueError, "probe_prompts", -1):
        trainer_of("grpo", tmp_path / "bad", probe_prompts=-1)
