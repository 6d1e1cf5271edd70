# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that a run cannot go on from as it was is refused, naming what is wrong and what to do."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from accelerate.utils import DistributedType
from naming import assert_names, raises_naming
from peft import LoraConfig
from tiny import QUIET, SIZES, make_llama, make_prompts, tiny_trainer

from minimind_hf import GRPOConfig, GRPOTrainer
from minimind_hf.trainer.checkpoints.checksums import CHECKSUMS
from minimind_hf.trainer.checkpoints.resuming import CheckpointError, Needs, check_whole

LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
SETTINGS = {"save_strategy": "steps", "save_steps": 1, "num_generations": 4, "steps_per_generation": 2}
SETTINGS |= {"optim": "adamw_torch"}


def build(folder, model=None, peft_config=None, prompts=None, **changes) -> GRPOTrainer:
    config = GRPOConfig(output_dir=str(folder), **QUIET | SIZES | SETTINGS | changes)
    return tiny_trainer(config, model, prompts=prompts or 12, peft_config=peft_config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two steps on one rollout: checkpoint-1 is within it, checkpoint-2 at its end."""
    folder = tmp_path_factory.mktemp("finished")
    build(folder).train()
    return folder


@pytest.fixture(scope="module")
def with_adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    build(folder, peft_config=LoraConfig(**LORA), max_steps=1).train()
    return folder / "checkpoint-1"


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    return build(tmp_path_factory.mktemp("refusing"))


def deepspeed_checkpoint(folder: Path, stage: int) -> Path:
    shards = ["zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"]
    (folder / "global_step1").mkdir(parents=True)
    for name in [
        *shards,
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ]:
        torch.save({}, folder / "global_step1" / name)
    (folder / "latest").write_text("global_step1")
    (folder / "trainer_state.json").write_text("{}")
    for rank in range(2):
        torch.save({"world_size": 2}, folder / f"rollout_state_{rank}.pt")
        torch.save({}, folder / f"rng_state_{rank}.pth")
    return folder


@pytest.mark.parametrize(
    ("stage", "needs", "named"),
    [
        (
            2,
            Needs(DistributedType.MULTI_GPU),
            ["ZeRO-2", "accelerate_configs/zero2.yaml"],
        ),
        (3, Needs(DistributedType.NO), ["ZeRO-3", "accelerate_configs/zero3.yaml"]),
        (2, Needs(DistributedType.DEEPSPEED, zero_stage=3), ["ZeRO-2", "ZeRO-3", "accelerate_configs/zero2.yaml"]),
        (3, Needs(DistributedType.DEEPSPEED, zero_stage=1), ["ZeRO-3", "ZeRO-1", "accelerate_configs/zero3.yaml"]),
    ],
)
def test_an_optimizer_of_another_mode_is_refused(tmp_path, stage, needs, named):
    with raises_naming(CheckpointError, "checkpoint-1", *named, "--model_name_or_path"):
        check_whole(deepspeed_checkpoint(tmp_path / "checkpoint-1", stage), needs)


def test_deepspeed_does_not_go_on_from_a_run_without(finished):
    with raises_naming(CheckpointError, finished / "checkpoint-2", "ZeRO-2", "accelerate_configs/ddp.yaml"):
        check_whole(finished / "checkpoint-2", Needs(DistributedType.DEEPSPEED, zero_stage=2))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parts_of_deepspeed_are_looked_at(tmp_path, stage):
    folder = deepspeed_checkpoint(tmp_path / "checkpoint-1", stage)
    needs = Needs(DistributedType.DEEPSPEED, zero_stage=stage)
    check_whole(folder, needs)
    part = folder / "global_step1" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    part.write_bytes(part.read_bytes()[:-9])
    with raises_naming(CheckpointError, part, "zip"):
        check_whole(folder, needs)
    part.unlink()
    with raises_naming(FileNotFoundError, part):
        check_whole(folder, needs)


FILES = (
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "rollout_state_0.pt",
    "trainer_state.json",
    "model.safetensors",
)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_checkpoint_to_take(run, refusing, name):
    (run / "checkpoint-2" / name).unlink()
    with raises_naming(FileNotFoundError, run / "checkpoint-2" / name, run / "checkpoint-1"):
        refusing.train(resume_from_checkpoint=str(run / "checkpoint-2"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut", "empty", "garbage"])
def test_a_damaged_file_is_named_with_the_checkpoint_to_take(run, refusing, name, how):
    path = run / "checkpoint-2" / name
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "garbage": b"\x80" * len(whole)}[how])
    with raises_naming(CheckpointError, path, run / "checkpoint-1"):
        refusing.train(resume_from_checkpoint=str(run / "checkpoint-2"))


def test_a_changed_byte_of_the_optimizer_is_found(run, refusing):
    path = run / "checkpoint-2" / "optimizer.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with raises_naming(CheckpointError, path, "optimizer/data", run / "checkpoint-1"):
        refusing.train(resume_from_checkpoint=str(run / "checkpoint-2"))


@pytest.mark.parametrize("name", [*FILES, "config.json", "training_args.bin"])
@pytest.mark.parametrize("place", [0.05, 0.5, 0.95, -1])
def test_any_changed_byte_is_found_and_its_file_named(run, refusing, name, place):
    path = run / "checkpoint-2" / name
    content = bytearray(path.read_bytes())
    content[int(place * len(content)) if place > 0 else -1] ^= 1
    path.write_bytes(content)
    with raises_naming((CheckpointError, FileNotFoundError), path, run / "checkpoint-1"):
        refusing.train(resume_from_checkpoint=str(run / "checkpoint-2"))


def test_a_checkpoint_without_checksums_resumes(run, tmp_path):
    (run / "checkpoint-2" / CHECKSUMS).unlink()
    trainer = build(tmp_path / "old", max_steps=3)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert trainer.state.global_step == 3


@pytest.mark.parametrize(
    ("changes", "prompts", "named"),
    [
        ({}, make_prompts(14), "number of prompts: 12, now 14"),
        ({}, make_prompts(12, seed=1), "digest of the prompts"),
        ({"seed": 7}, None, "seed: 42, now 7"),
        ({"shuffle_dataset": False}, None, "shuffle_dataset: True, now False"),
        ({"per_device_train_batch_size": 16}, None, "prompts of a rollout, over all processes: 4, now 8"),
        ({"gradient_accumulation_steps": 2}, None, "optimizer steps of a rollout: 2.0, now 1.0"),
    ],
)
def test_another_order_of_the_prompts_is_said(finished, tmp_path, warnings, changes, prompts, named):
    trainer = build(tmp_path / "run", max_steps=3, prompts=prompts, **changes)
    trainer.train(resume_from_checkpoint=str(finished / "checkpoint-2"))
    (said,) = [text for text in warnings if "another order" in text]
    assert named in said and trainer.state.global_step == 3


def test_the_same_order_is_not_remarked_on(finished, tmp_path, warnings):
    build(tmp_path / "run", max_steps=3).train(resume_from_checkpoint=str(finished / "checkpoint-2"))
    assert not [text for text in warnings if "another order" in text or "nothing left" in text]


def test_nothing_left_to_train_is_said(finished, tmp_path, warnings):
    build(tmp_path / "run", max_steps=2).train(resume_from_checkpoint=str(finished / "checkpoint-2"))
    (said,) = [text for text in warnings if "nothing left to train" in text]
    assert "of step 2, and this run has 2" in said
    few = build(tmp_path / "few", max_steps=-1, num_train_epochs=1, prompts=make_prompts(4), num_generations=8)
    few.train(resume_from_checkpoint=str(finished / "checkpoint-2"))
    assert [text for text in warnings if "another order" in text]


def test_the_newest_whole_checkpoint_is_taken(run, warnings):
    (run / "checkpoint-2" / "scheduler.pt").unlink()
    (run / "checkpoint-7").mkdir()
    trainer = build(run)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    assert trainer.state.log_history[0]["step"] == 1  # of checkpoint-1
    skipped = [text for text in warnings if "checkpoint-" in text]
    assert ["checkpoint-7" in skipped[0], "checkpoint-2" in skipped[1], len(skipped)] == [True, True, 2]


def test_nothing_to_resume_from(tmp_path, refusing):
    with raises_naming(CheckpointError, "resume_from_checkpoint", True, "output_dir"):
        refusing.train(resume_from_checkpoint=True)
    with raises_naming(CheckpointError, tmp_path / "nope"):
        refusing.train(resume_from_checkpoint=str(tmp_path / "nope"))


@pytest.mark.parametrize(
    "changes", [{"r": 4}, {"lora_alpha": 8}, {"target_modules": ["q_proj"]}, {"use_rslora": True}, {"bias": "all"}]
)
def test_other_adapters_are_refused(with_adapters, tmp_path, changes):
    trainer = build(tmp_path / "other", peft_config=LoraConfig(**LORA | changes))
    ((name, value),) = changes.items()
    with raises_naming(CheckpointError, with_adapters, name, repr(value)):
        trainer.train(resume_from_checkpoint=str(with_adapters))


def test_adapters_on_one_side_only_are_refused(with_adapters, finished, tmp_path, refusing):
    with raises_naming(CheckpointError, with_adapters, "adapter_config.json", "r=2", "lora_alpha=4"):
        refusing.train(resume_from_checkpoint=str(with_adapters))
    trainer = build(tmp_path / "other", peft_config=LoraConfig(**LORA))
    with raises_naming(CheckpointError, finished / "checkpoint-2", "r=2", "lora_alpha=4", "--model_name_or_path"):
        trainer.train(resume_from_checkpoint=str(finished / "checkpoint-2"))


def test_the_same_adapters_go_on(with_adapters, tmp_path):
    same = LoraConfig(**LORA | {"target_modules": ["v_proj", "q_proj"], "lora_dropout": 0.1})
    trainer = build(tmp_path / "same", peft_config=same)
    trainer.train(resume_from_checkpoint=str(with_adapters))
    assert trainer.state.global_step == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": 0.5}, ["temperature", 0.8, 0.5]),
        ({"num_generations": 2}, ["num_generations", 4, 2]),
        ({"beta": 0.0}, ["beta", True, False]),
        ({"scale_rewards": "none"}, ["scale_rewards", "group", "none"]),
    ],
)
def test_other_settings_than_the_buffer_was_made_with_are_refused(finished, tmp_path, changes, named):
    trainer = build(tmp_path / "run", **changes)
    with raises_naming(ValueError, finished / "checkpoint-1", *named):
        trainer.train(resume_from_checkpoint=str(finished / "checkpoint-1"))


def test_settings_may_change_between_rollouts(finished, tmp_path):
    changed = {"temperature": 0.5, "num_generations": 2, "beta": 0.0, "learning_rate": 1e-3}
    trainer = build(tmp_path / "run", max_steps=3, **changed)
    trainer.train(resume_from_checkpoint=str(finished / "checkpoint-2"))
    assert trainer.state.global_step == 3


@pytest.fixture
def warnings(monkeypatch):
    found = []
    rooms = ("resuming", "data_order")
    for name in ("transformers.trainer", *(f"minimind_hf.trainer.checkpoints.{room}" for room in rooms)):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "warning", lambda text, *values: found.append(text % values if values else text))
    return found


def test_tied_weights_are_not_missing_and_others_are(run, tmp_path, warnings):
    build(tmp_path / "tied").train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert not [text for text in warnings if "missing keys" in text]
    trainer = build(tmp_path / "llama", model=make_llama())
    trainer._issue_warnings_after_load(torch.nn.modules.module._IncompatibleKeys(["lm_head.weight"], []))
    assert [text for text in warnings if "missing keys" in text]


def test_a_fresh_run_says_what_lies_in_its_folder(run, warnings):
    build(run, max_steps=1).train()
    (said,) = [text for text in warnings if "checkpoint-1" in text]
    assert_names(said, run, "checkpoint-2", "resume_from_checkpoint=True", "output_dir")
