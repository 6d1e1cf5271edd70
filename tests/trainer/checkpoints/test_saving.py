# SPDX-License-Identifier: Apache-2.0
"""What a run leaves stays whole: when a disk is full, when it is ended."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from naming import raises_naming
from tiny import make_prompts, share_of_a

from minimind_hf.atomic import whole_file
from minimind_hf.trainer.checkpoints import saving
from minimind_hf.trainer.checkpoints.atomic import CheckpointNotSavedError, drop_old_checkpoints
from minimind_hf.trainer.models.weights import NotFiniteError


def test_checkpoints_are_dropped_by_age(tmp_path):
    for time, step in enumerate([8, 9, 1, 2, 3]):  # an earlier run came to 9
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.utime(tmp_path / f"checkpoint-{step}", (1000 + time, 1000 + time))
    drop_old_checkpoints(tmp_path, 2, None, "checkpoint-3")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-3"}
    drop_old_checkpoints(tmp_path, 1, str(tmp_path / "checkpoint-2"), "checkpoint-3")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-3"}  # the best one stays
    os.utime(tmp_path / "checkpoint-3", (0, 0))
    drop_old_checkpoints(tmp_path, 1, None, "checkpoint-3")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-3"}  # as does the one just written


def test_a_fresh_run_keeps_its_own_checkpoints(make_trainer):
    for steps in (6, 3):
        trainer = make_trainer(max_steps=steps, save_strategy="steps", save_steps=1, save_total_limit=2)
        trainer.train()
    kept = {path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")}
    assert kept == {"checkpoint-2", "checkpoint-3"}


def test_a_file_that_is_not_finished_is_as_it_was(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("before")
    with raises_naming(OSError, "full"), whole_file(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("full")
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["run.json"]
    with whole_file(path) as unfinished:
        unfinished.write_text("after")
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("file write failed")])
def test_a_save_that_fails_names_its_checkpoint_and_gives_the_room_back(make_trainer, monkeypatch, error):
    trainer = make_trainer(max_steps=3, save_strategy="steps", save_steps=1)

    def save(self, output_dir):
        Path(output_dir, "optimizer.pt").write_bytes(b"half")
        if self.state.global_step == 2:
            raise error

    monkeypatch.setattr(saving.Trainer, "_save_optimizer_and_scheduler", save)
    monkeypatch.setattr(trainer.run_log.samples, "end", lambda: (_ for _ in ()).throw(OSError("full as well")))
    folder = Path(trainer.args.output_dir)
    remedy = f"--resume_from_checkpoint {folder / 'checkpoint-1'}"
    with raises_naming(CheckpointNotSavedError, folder / "checkpoint-2", error, "save_total_limit", remedy):
        trainer.train()
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-1"]
    assert not (folder / "_saving").exists()


def test_sigterm_leaves_the_record(make_trainer):
    def reward(completion_ids, trainer_state, **kwargs):
        if trainer_state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return share_of_a(completion_ids)

    trainer = make_trainer(reward=reward, max_steps=3)
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    state = json.loads(Path(trainer.args.output_dir, "trainer_state.json").read_text())
    assert state["global_step"] == 1


@pytest.mark.parametrize("scripted", [True, False])
def test_weights_that_are_not_finite_are_named(make_trainer, scripted):
    trainer = make_trainer(scripted=scripted)
    with torch.no_grad():
        trainer.model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with raises_naming(NotFiniteError, "step 1", "model.layers.1.mlp.up_proj.weight", "learning_rate"):
        trainer.train()


def test_predict_measures_and_unknown_names_are_refused(make_trainer):
    trainer = make_trainer()
    metrics = trainer.predict(make_prompts(4)).metrics
    assert metrics["test_reward"] == pytest.approx(trainer.evaluate(make_prompts(4))["eval_reward"])
    with raises_naming(ValueError, "'zz'", "eval_dataset"):
        trainer.evaluate("zz")
