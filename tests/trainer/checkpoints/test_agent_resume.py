# SPDX-License-Identifier: Apache-2.0
"""Runs with episodes go on from a checkpoint bit for bit, with environments that keep something across episodes."""

from types import SimpleNamespace

import pytest
import torch
from agent_runs import Counter, Game, Remembering, Saved, agent_trainer, make_rows
from naming import raises_naming

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.agent import AgentError
from minimind_hf.trainer.checkpoints.state import ROLLOUT_STATE, load_agent_state, save_rollout_state

SETTINGS = {
    "optim": "adamw_torch",
    "learning_rate": 1e-2,
    "lr_scheduler_type": "cosine_with_min_lr",
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 1,
    "max_completion_length": 48,
    "max_turn_length": 12,
    "per_device_train_batch_size": 4,
}
SHAPES = {
    "grpo within a rollout": (GRPOConfig, {"steps_per_generation": 4, "num_iterations": 2, "num_generations": 4}),
    "grpo accumulated": (GRPOConfig, {"gradient_accumulation_steps": 2, "beta": 0.1}),
    "ppo": (PPOConfig, {"mini_batch_size": 2, "critic_learning_rate": 1e-2, "ppo_update_iters": 2, "kl_coef": 0.1}),
}


def build(folder, environment, config_class=GRPOConfig, **changes):
    trainer = agent_trainer(folder, config_class, environment_factory=environment, **SETTINGS | changes)
    trainer.prompts = []
    score = trainer.score

    def scored(experience):
        trainer.prompts += [episode.prompt["prompt"][-1]["content"] for episode in experience.episodes]
        score(experience)

    trainer.score = scored
    return trainer


def resumed(straight, folder, stop, *args, **changes):
    trainer = build(folder, *args, **changes)
    trainer.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
    return trainer


def are_equal(one, other) -> bool:
    found = other.model.state_dict()
    return all(torch.equal(tensor, found[name]) for name, tensor in one.model.state_dict().items())


def losses(trainer) -> list:
    return [
        (entry["step"], entry["loss"], entry.get("reward")) for entry in trainer.state.log_history if "loss" in entry
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_resumed_equals_straight(tmp_path, shape):
    config_class, changes = SHAPES[shape]
    straight = build(tmp_path / "straight", Game, config_class, **changes)
    straight.train()
    assert straight.state.log_history[0]["episodes/turns"] > 1
    for stop in (1, 2, 5):
        again = resumed(straight, tmp_path / str(stop), stop, Game, config_class, **changes)
        assert are_equal(straight, again), stop
        assert losses(again) == losses(straight)


@pytest.mark.parametrize("stop", [2, 3])  # at the end of a rollout, and within one
def test_environments_go_on_where_they_were(tmp_path, stop):
    changes = {"steps_per_generation": 2}
    straight = build(tmp_path / "straight", Saved, **changes)
    straight.train()
    again = resumed(straight, tmp_path / "again", stop, Saved, **changes)
    assert are_equal(straight, again)
    assert again.prompts == straight.prompts[-len(again.prompts) :] and len(set(straight.prompts)) > 4
    (state,) = torch.load(f"{straight.args.output_dir}/checkpoint-{stop}/{ROLLOUT_STATE.format(rank=0)}")["agent"][
        "states"
    ].values()
    assert len(state) == 8 and all(each["games"] == (stop + 1) // 2 for each in state)
    forgetful = build(tmp_path / "forgetful", Remembering, **changes)
    forgetful.train()
    assert forgetful.prompts == straight.prompts
    other = resumed(forgetful, tmp_path / "other", stop, Remembering, **changes)
    assert other.prompts != straight.prompts[-len(other.prompts) :]


def test_an_evaluation_before_the_first_step_changes_no_resumed_environment(tmp_path):
    changes = {"eval_on_start": True, "eval_strategy": "no", "per_device_eval_batch_size": 4, "max_steps": 3}
    straight = build(tmp_path / "straight", Saved, eval_dataset=make_rows(2), **changes)
    straight.train()
    again = resumed(straight, tmp_path / "again", 2, Saved, eval_dataset=make_rows(2), **changes)
    assert again.prompts[-4:] == straight.prompts[-4:] and are_equal(straight, again)


def test_that_turns_are_rewarded_is_known_after_a_resume(tmp_path):
    class Once(Game):
        """Rewards turns before the first step alone."""

        rewards = True

        def reward(self, turn):
            return super().reward(turn) if Once.rewards else None

    def length(completions, **_):
        Once.rewards = False
        return [float(len(each)) for each in completions]

    straight = build(tmp_path / "straight", Once, rewards=length, max_steps=2)
    straight.train()
    again = resumed(straight, tmp_path / "again", 1, Once, rewards=length, max_steps=2)
    assert "rewards/turn_1" in straight.state.log_history[1] and are_equal(straight, again)
    assert again.state.log_history[1]["rewards/Once/mean"] == straight.state.log_history[1]["rewards/Once/mean"] == 0


class Half(Counter):
    def state_dict(self):
        return {}


class Unsavable(Saved):
    def state_dict(self):
        return {"rng": self.rng}


class Refusing(Saved):
    def load_state_dict(self, state):
        raise KeyError("level")


def test_states_that_no_checkpoint_can_hold_are_refused(tmp_path):
    with raises_naming(AgentError, "Half", "state_dict", "load_state_dict"):
        build(tmp_path, Half)
    with raises_naming(AgentError, "Unsavable.state_dict", "random.Random"):
        build(tmp_path / "unsavable", Unsavable)
    build(tmp_path / "refusing", Refusing, max_steps=1).train()
    with raises_naming(AgentError, "Refusing.load_state_dict", "games", "KeyError", "level"):
        build(tmp_path / "again", Refusing).train(resume_from_checkpoint=str(tmp_path / "refusing" / "checkpoint-1"))


def test_other_processes_go_on_with_the_environments_of_all(tmp_path):
    found = {}

    class Agent:
        def __init__(self, rank):
            self.rank = rank

        def state_dict(self):
            return {"states": {None: [self.rank]}, "rewarding": []}

        def load_state_dict(self, state):
            found[self.rank] = state["states"][None]

    for rank in range(2):
        args = SimpleNamespace(world_size=2, process_index=rank, optim="sgd")
        save_rollout_state(tmp_path, args, 1, [], agent=Agent(rank).state_dict())
    for rank in range(4):
        load_agent_state(Agent(rank), tmp_path, SimpleNamespace(world_size=4, process_index=rank))
    assert found == {0: [0], 1: [1], 2: [0], 3: [1]}
