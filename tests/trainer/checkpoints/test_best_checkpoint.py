# SPDX-License-Identifier: Apache-2.0
"""The best checkpoint outlives moves of the output folder, and is what a run ends with."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import TrainerCallback

from minimind_hf import GRPOTrainer


class Scores(TrainerCallback):
    """Gives evaluations scores that are known: step 1 is the best."""

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        metrics["eval_score"] = {1: 9.0}.get(state.global_step, 1.0)


@pytest.fixture
def build(make_config):
    def make(folder, **changes):
        settings = {
            "save_strategy": "steps",
            "save_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_total_limit": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "score",
            "greater_is_better": True,
        }
        config = make_config(output_dir=str(folder), **settings | changes)
        return GRPOTrainer(
            make_policy(),
            share_of_a,
            config,
            train_dataset=make_prompts(12),
            eval_dataset=make_prompts(2),
            processing_class=make_tokenizer(),
            callbacks=[Scores()],
            rollout_engine=ScriptedEngine(config.temperature),
        )

    return make


def weights(folder) -> dict:
    return load_file(Path(folder) / "model.safetensors")


@pytest.fixture
def stopped(build, tmp_path):
    folder = tmp_path / "first"
    build(folder, max_steps=3, save_total_limit=2).train()
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}
    return folder


@pytest.mark.parametrize("how", ["moved", "copied", "linked", "as it was"])
@pytest.mark.parametrize("relative", [False, True])
def test_the_best_is_kept_and_loaded_wherever_the_run_lies(build, stopped, tmp_path, monkeypatch, how, relative):
    best = weights(stopped / "checkpoint-1")
    there = tmp_path / "second"
    if how == "moved":
        stopped.rename(there)
    elif how == "copied":
        shutil.copytree(stopped, there)
    elif how == "linked":
        there.symlink_to(stopped, target_is_directory=True)
    else:
        there = stopped
    monkeypatch.chdir(tmp_path)
    trainer = build(there.name if relative else there, max_steps=5)
    trainer.train(resume_from_checkpoint=str(there / "checkpoint-3"))
    assert {path.name for path in there.glob("checkpoint-*")} == {"checkpoint-1"}
    assert os.path.realpath(trainer.state.best_model_checkpoint) == os.path.realpath(there / "checkpoint-1")
    for name, tensor in best.items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name


def test_a_best_that_is_lost_is_said_and_the_next_one_is_kept(build, stopped, tmp_path):
    there = stopped.rename(tmp_path / "second")
    shutil.rmtree(there / "checkpoint-1")
    trainer = build(there, max_steps=5)
    trainer.train(resume_from_checkpoint=str(there / "checkpoint-3"))
    assert trainer.state.best_global_step == 4 and trainer.state.best_metric == 1.0
    assert {path.name for path in there.glob("checkpoint-*")} == {"checkpoint-4"}


def test_a_run_resumed_into_another_folder_keeps_the_best_of_the_first(build, stopped, tmp_path):
    trainer = build(tmp_path / "other", max_steps=4)
    trainer.train(resume_from_checkpoint=str(stopped / "checkpoint-3"))
    assert trainer.state.best_model_checkpoint == str(stopped / "checkpoint-1")
    assert (stopped / "checkpoint-1").is_dir()
