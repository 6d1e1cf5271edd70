# SPDX-License-Identifier: Apache-2.0
"""Training with a rollout server: the right weights, what is logged, and what is left when the server is gone."""

import threading
import time

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from ppo_tools import make_trainer as make_ppo_trainer
from sglang_double import SGLangDouble, changes, takes
from tiny import ScriptedEngine, make_policy, make_prompts
from transformers import TrainerCallback

from minimind_hf import GRPOConfig, ServerGoneError, TorchEngine
from minimind_hf.rollout import EngineMismatchError
from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights

DIFFERENCE = "sampling/sampling_logp_difference"


@pytest.fixture
def double(tmp_path):
    folder = tmp_path / "served"
    model = make_policy(seed=9)
    folder.mkdir()
    write_weights(exported_weights(model), exported_config(model), folder)
    double = SGLangDouble(folder)
    yield double
    double.stop()


def served(double, **changes) -> dict:
    return {
        "scripted": False,
        "rollout_engine": "sglang",
        "sglang_base_url": [double.url],
        "server_timeout": 60,
        "max_steps": 4,
        **changes,
    }


def logged(trainer, name) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry and name in entry]


def states_equal(one, other) -> bool:
    return all(torch.equal(tensor, other.model.state_dict()[name]) for name, tensor in one.model.state_dict().items())


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_rollout_comes_from_the_newest_weights(make_trainer, double, lora):
    model = make_policy()
    if lora:
        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    trainer = make_trainer(model, **served(double))
    trainer.train()
    assert len(double.versions) == 4
    assert max(logged(trainer, f"{DIFFERENCE}/max")) < 1e-4
    assert max(logged(trainer, "sampling/k3")) < 1e-6
    assert logged(trainer, "sampling/staleness") == [0.0] * 4
    assert [abs(ratio - 1) < 1e-4 for ratio in logged(trainer, "ratio_mean")] == [True] * 4


@pytest.mark.parametrize(("correction", "health"), [("none", True), ("truncate", True), ("mask", False)])
def test_other_weights_under_the_right_name_end_the_run(make_trainer, double, correction, health):
    """From the second sync on, the server keeps the name and loads something else."""

    def load_others(answer):
        double.model = make_policy(seed=5, scale=40.0)
        return answer

    double.next("/update_weights_from_disk", lambda answer: answer(), changes(load_others))
    trainer = make_trainer(**served(double, rollout_correction=correction, health=health))
    with raises_naming(EngineMismatchError, "step 2", "max_sampling_k3", 1, "rollout_weight_sync"):
        trainer.train()
    assert trainer.state.global_step == 1  # the update on them was not made
    if health:
        assert trainer.health.messages[-1].rule == "engine_mismatch"


def test_the_bound_may_be_raised_and_switched_off(make_trainer, double):
    def load_similar(answer):
        double.model = make_policy(scale=4.2)
        return answer

    for limit, ends in {None: False, 1e6: False, 1e-9: True}.items():
        double.next("/update_weights_from_disk", lambda answer: answer(), changes(load_similar))
        trainer = make_trainer(**served(double, max_sampling_k3=limit, max_steps=2))
        if ends:
            with raises_naming(EngineMismatchError, "max_sampling_k3=1e-09"):
                trainer.train()
        else:
            trainer.train()
            assert trainer.state.global_step == 2


def test_ppo_too(tmp_path, double):
    settings = served(double)
    settings.pop("scripted")
    trainer = make_ppo_trainer(tmp_path / "run", engine=None, **settings)
    trainer.train()
    assert max(logged(trainer, f"{DIFFERENCE}/max")) < 1e-4
    assert logged(trainer, "sampling/staleness") == [0.0, 0.0]  # two steps of each rollout


def test_sync_every_leaves_older_weights_and_says_so(make_trainer, double):
    trainer = make_trainer(**served(double, sync_every=2, max_steps=5))
    trainer.train()
    assert logged(trainer, "sampling/staleness") == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert len(double.versions) == 3
    difference = logged(trainer, f"{DIFFERENCE}/mean")
    assert max(difference[0::2]) < 1e-5 < min(difference[1::2])
    assert max(logged(trainer, "sampling/k3")) > trainer.args.max_sampling_k3  # of the policy's own steps: no stop


def test_a_run_resumed_between_syncs_begins_with_one(make_trainer, double):
    settings = served(double, sync_every=2, max_steps=5, save_strategy="steps", save_steps=3)
    for checkpoint, staleness in ((None, [0.0, 1.0, 0.0, 1.0, 0.0]), (3, [0.0, 1.0, 0.0, 0.0, 1.0])):
        trainer = make_trainer(**settings)
        folder = checkpoint and f"{trainer.args.output_dir}/checkpoint-{checkpoint}"
        trainer.train(resume_from_checkpoint=folder)
        assert logged(trainer, "sampling/staleness") == staleness


def test_sync_every_is_not_for_the_torch_engine(make_trainer):
    with raises_naming(ValueError, "sync_every", 2, "TorchEngine"):
        make_trainer(engine=TorchEngine(), sync_every=2)


def test_an_evaluation_takes_one_sync(make_trainer, double):
    trainer = make_trainer(**served(double, per_device_eval_batch_size=4, num_generations_eval=2))
    trainer.evaluate(make_prompts(6))
    assert len(double.versions) == 1
    assert len(double.requests["/generate"]) == 2 + 6


def test_the_model_card_does_not_name_servers(make_trainer, double):
    trainer = make_trainer(**served(double, max_steps=1))
    trainer.train()
    trainer.create_model_card()
    with open(f"{trainer.args.output_dir}/README.md") as file:
        assert "127.0.0.1" not in file.read()


def test_weights_are_gone_from_the_disk_at_the_end(make_trainer, double, tmp_path):
    trainer = make_trainer(**served(double, max_steps=1, rollout_sync_dir=str(tmp_path / "sync")))
    trainer.train()
    assert len(list((tmp_path / "sync").iterdir())) == 1
    trainer.end()
    assert not (tmp_path / "sync").exists()


# Correction


class OffEngine(ScriptedEngine):
    """Claims log-probabilities that are off by a constant, as an engine of another precision is at random."""

    def generate(self, *args):
        rollouts = super().generate(*args)
        for rollout in rollouts:
            rollout.logprobs = [logp - 1.0 for logp in rollout.logprobs]
        return rollouts


@pytest.mark.parametrize("make", ["grpo", "ppo"])
@pytest.mark.parametrize(("how", "ratio", "weight"), [("none", 2.718282, None), ("truncate", 1, 2), ("mask", 1, 0)])
def test_correction(make_trainer, tmp_path, make, how, ratio, weight):
    """trainer / engine is e = 2.72 everywhere, above the cap of 2."""
    settings = {"rollout_correction": how, "max_steps": 1}
    if make == "grpo":
        trainer = make_trainer(engine=OffEngine(0.8), loss_type="grpo", beta=0.0, **settings)
    else:
        trainer = make_ppo_trainer(tmp_path / "run", engine=OffEngine(0.8), kl_coef=0.0, vf_coef=0.0, **settings)
    trainer.train()
    assert logged(trainer, "ratio_mean") == pytest.approx([ratio], abs=1e-4)
    assert logged(trainer, f"{DIFFERENCE}/mean") == pytest.approx([1.0], abs=1e-4)
    assert logged(trainer, f"{DIFFERENCE}/max") == pytest.approx([1.0], abs=1e-4)
    assert logged(trainer, "sampling/k3") == pytest.approx([2.718282 - 2], abs=1e-4)
    weights = logged(trainer, "sampling/importance_sampling_ratio/mean")
    assert weights == ([] if weight is None else pytest.approx([weight], abs=1e-4))
    if how == "mask":
        assert logged(trainer, "grad_norm") == [0.0]


def test_an_engine_that_agrees_needs_no_correction(make_trainer):
    runs = {how: make_trainer(rollout_correction=how) for how in ("none", "truncate")}
    for trainer in runs.values():
        trainer.train()
    for name, tensor in runs["none"].model.state_dict().items():
        torch.testing.assert_close(tensor, runs["truncate"].model.state_dict()[name], atol=1e-6, rtol=0)


def test_mismatch_is_measured_before_the_policy_moves(make_trainer):
    trainer = make_trainer(num_iterations=3, max_steps=6, learning_rate=1e-2)
    trainer.train()
    assert len(logged(trainer, f"{DIFFERENCE}/max")) == 2  # one of three steps on each rollout
    assert max(logged(trainer, f"{DIFFERENCE}/max")) < 1e-5


# Servers that fail


def test_a_server_killed_and_started_again_changes_nothing(make_trainer, double, tmp_path):
    def restart(answer):
        def later():
            double.stop()
            time.sleep(0.3)
            double.start()

        threading.Thread(target=later).start()
        time.sleep(0.2)
        return answer()

    runs = []
    for fault in (lambda answer: answer(), restart):
        double.next("/generate", *[changes(lambda answer: answer)] * 5, fault)
        runs.append(make_trainer(**served(double)))
        runs[-1].train()
        double.faults.clear()
    assert double.starts == 2
    assert states_equal(*runs)


def save_settings(double, **changes) -> dict:
    return served(double, optim="adamw_torch", learning_rate=1e-2, max_steps=6, **changes)


SHAPES = {
    "rollout a step": {},
    "two rollouts a step": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4,
                            "steps_per_generation": 2},
    "three steps a rollout": {"num_iterations": 3},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_server_that_is_gone_leaves_a_checkpoint_from_which_the_run_goes_on_exactly(
    make_trainer, double, tmp_path, shape
):
    settings = save_settings(double, **SHAPES[shape])
    straight = make_trainer(output_dir=str(tmp_path / "straight"), **settings)
    straight.train()

    class LosePatience(TrainerCallback):
        """From the second step on a server may fail for half a second only."""

        def on_step_end(self, args, state, control, **kwargs):
            stopped._rollouts.engine.server_timeout = 0.5

    stopped = make_trainer(**settings)
    stopped.add_callback(LosePatience())
    survived = {"rollout a step": 7, "two rollouts a step": 7, "three steps a rollout": 3}[shape]

    def die(answer):
        double.stop()
        return answer()

    double.next("/generate", *[takes(0)] * survived, die)
    with raises_naming(ServerGoneError, double.url, "server_timeout", 0.5, "--resume_from_checkpoint") as end:
        stopped.train()
    step = stopped.state.global_step
    assert 0 < step < 6
    checkpoint = f"{stopped.args.output_dir}/checkpoint-{step}"
    assert checkpoint in str(end.value)

    double.faults.clear()
    double.start()
    resumed = make_trainer(**settings)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert states_equal(straight, resumed)


def test_gone_before_the_first_step_there_is_nothing_to_save(make_trainer, double, tmp_path):
    trainer = make_trainer(**served(double))
    trainer._rollouts.engine.server_timeout = 0.3
    double.stop()
    with raises_naming(ServerGoneError, double.url, "server_timeout", 0.3):
        trainer.train()
    assert not list((tmp_path / "run").glob("checkpoint-*"))


# Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rollout_engine": "vllm"}, ["rollout_engine", "'torch'", "'sglang'", "'vllm'"]),
        (
            {"rollout_engine": "sglang"},
            ["rollout_engine", "--rollout_engine sglang --sglang_base_url http://localhost:30000"],
        ),
        ({"sync_every": 0}, ["sync_every", 1, 0]),
        ({"rollout_correction": "clip"}, ["rollout_correction", "'none'", "'truncate'", "'mask'", "'clip'"]),
        ({"rollout_correction_cap": 0.5}, ["rollout_correction_cap", 1, 0.5]),
        ({"server_timeout": 0}, ["server_timeout", 0]),
        ({"rollout_weight_sync": "tensor"}, ["rollout_weight_sync", "'disk'", "'distributed'", "'tensor'"]),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path, settings, named):
    with raises_naming(ValueError, *named):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **settings)


def test_servers_are_a_list_or_one_as_text(tmp_path):
    for given in ("http://a:1", ["http://a:1"]):
        config = GRPOConfig(str(tmp_path), use_cpu=True, rollout_engine="sglang", sglang_base_url=given)
        assert config.sglang_base_url == ["http://a:1"]
