# SPDX-License-Identifier: Apache-2.0
"""For every rule of health a run that is made wrong on purpose: tiny policies, real rollouts, losses and updates."""

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from agent_runs import ENDS, TOKENIZER, Counter, Game, ScriptedPlayer, agent_trainer
from ppo_tools import make_trainer as make_ppo
from tiny import make_policy, make_prompts
from transformers import TrainerCallback

from minimind_hf import GRPOConfig, Reply, TorchEngine
from minimind_hf.health.monitor import read_health
from minimind_hf.health.rules import NOT_FINITE, RULES
from minimind_hf.trainer.models.weights import NotFiniteError


def rules_of(trainer) -> set[str]:
    return {message.rule for message in trainer.health.messages}


# Rewards


def constant(completions, **kwargs):
    return [0.5] * len(completions)


def silent(completions, **kwargs):
    return [None] * len(completions)


def noise(completion_ids, **kwargs):
    return [float(zlib.crc32(bytes(str(ids), "ascii")) % 7) for ids in completion_ids]


def always_negative(completion_ids, **kwargs):
    return [score - 10 for score in noise(completion_ids)]


def number_of_a(completions, **kwargs):
    return [float(text.count("a")) for text in completions]


def variety(completion_ids, **kwargs):
    return [float(len(set(ids))) for ids in completion_ids]


def shortness(completion_ids, **kwargs):
    return [-float(len(ids)) for ids in completion_ids]


# Runs

LEARNS = {
    "optim": "adamw_torch", "learning_rate": 1e-2, "per_device_train_batch_size": 32, "num_generations": 8,
    "max_grad_norm": 1.0, "max_completion_length": 16, "beta": 0.0,
}  # fmt: skip
STANDS_STILL = {"learning_rate": 0.0, "max_steps": 10}


class StaleEngine(TorchEngine):
    """Goes on with the weights that it was given first."""

    def sync_weights(self, model, version):
        if self.model is None:
            super().sync_weights(copy.deepcopy(model), version)
        self.weights_version = version


def conversations() -> list[dict]:
    return [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(12)]


class LearningRateJumps(TrainerCallback):
    """What a broken schedule does."""

    def on_step_begin(self, args, state, control, optimizer, **kwargs):
        if state.global_step >= 12:
            optimizer.param_groups[0]["lr"] = 0.3


def with_jumps(trainer):
    trainer.add_callback(LearningRateJumps())
    return trainer


def with_critic_at_zero(trainer):
    """What a head that starts at 0 and never moves says: the same value everywhere."""
    with torch.no_grad():
        trainer._actor_critic.critic.score.weight.zero_()
    return trainer


@dataclass(frozen=True)
class BadRun:
    """A run that is made wrong on purpose.

    Args:
        rules (`tuple[str, ...]`): What its health must say, among other things.
        make (`Callable`): Makes the trainer out of the fixture for GRPO and a folder for PPO.
    """

    rules: tuple[str, ...]
    make: Callable


def grpo(*rules: str, policy: dict | None = None, **settings) -> BadRun:
    return BadRun(rules, lambda make, folder: make(make_policy(**policy or {}), scripted=False, **settings))


def ppo(*rules: str, **settings) -> BadRun:
    defaults = {"learning_rate": 0.0, "critic_learning_rate": 0.0, "max_steps": 42, "ppo_update_iters": 1}
    return BadRun(rules, lambda make, folder: make_ppo(folder, **defaults | settings))


class Says(ScriptedPlayer):
    """A policy that always writes this."""

    def __init__(self, text: str):
        super().__init__(GRPOConfig.temperature)
        self.ids = TOKENIZER.encode(text) + ENDS[:1]

    def _turn(self, rng):
        return list(self.ids)


def fails() -> str:
    """Fails."""
    raise OSError("down")


class Talkative(Game):
    def respond(self, turn):
        return Reply("and so on " * 40, reward=float(turn.number), done=turn.number == 1)


def agent(*rules: str, says: str, **settings) -> BadRun:
    defaults = {"max_steps": 12, "learning_rate": 0.0, "max_turns": 2, "max_completion_length": 512}
    return BadRun(rules, lambda make, folder: agent_trainer(folder, engine=Says(says), **defaults | settings))


BAD_RUNS = {
    "a policy whose calls cannot be read": agent(
        "calls_unparsed", "episodes_endless", says="<tool_call>add 1</tool_call>", environment_factory=Counter
    ),
    "a tool that fails": agent(
        "tools_failing",
        says='<tool_call>{"name": "fails", "arguments": {}}</tool_call>',
        tools=[fails],
        rewards="length",
    ),
    "an environment that talks": agent("observations_crowding", says="a", environment_factory=Talkative),
    "a reward that says nothing": grpo("reward_missing", reward=silent, max_steps=6),
    "a constant reward": grpo("reward_constant", reward=constant, max_steps=6),
    "rewards below 0 that cannot be learned": grpo("reward_negative", reward=always_negative, max_steps=20),
    "a reward that is noise": grpo("reward_flat", reward=noise, max_steps=120, learning_rate=1e-4),
    "a learning rate that jumps": BadRun(
        ("reward_fell",),
        lambda make, folder: with_jumps(
            make(make_policy(scale=1.0), variety, scripted=False, max_steps=28, **LEARNS | {"learning_rate": 1e-4})
        ),
    ),
    "temperature 0.01": grpo("no_group_variance", policy={"scale": 30.0}, temperature=0.01, **STANDS_STILL),
    "beta 0 and a reward that can be hacked": grpo(
        "reward_hacking", "completions_repeating", policy={"scale": 1.0}, reward=number_of_a, max_steps=40, **LEARNS
    ),
    "a learning rate that is far too high": grpo(
        "kl_growing", reward=noise, max_steps=12, learning_rate=300.0, per_device_train_batch_size=32
    ),
    "a learning rate that is far too low": grpo("nothing_learned", reward=noise, max_steps=50, learning_rate=1e-12),
    "a reward for ending at once": grpo(
        "completions_short", policy={"scale": 1.0}, reward=shortness, max_steps=40, **LEARNS
    ),
    "a policy that was never trained": grpo(
        "completions_truncated", "thinking_missing", prompts=conversations(), thinking_ratio=1.0, **STANDS_STILL
    ),
    "temperature 0.01 and a policy that is certain": grpo(
        "sampling_certain", policy={"scale": 100.0}, temperature=0.01, **STANDS_STILL
    ),
    "a critic learning rate of 0": ppo("critic_useless"),
    "a critic that stays at 0": BadRun(
        ("critic_loss_not_falling",),
        lambda make, folder: with_critic_at_zero(ppo().make(make, folder)),
    ),
    "an engine with stale weights": grpo(
        "engine_mismatch", engine=StaleEngine(), reward=noise, max_steps=8, learning_rate=0.5, max_grad_norm=1.0
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_run_that_is_made_wrong_hears_so(make_trainer, tmp_path, name):
    trainer = BAD_RUNS[name].make(make_trainer, tmp_path)
    trainer.train()
    assert set(BAD_RUNS[name].rules) <= rules_of(trainer), trainer.health.messages
    assert read_health(trainer.args.output_dir) == trainer.health.messages


def test_an_update_without_bounds_is_stopped_by_what_it_leads_to(make_trainer):
    trainer = make_trainer(scripted=False, learning_rate=1e38, max_steps=5, num_iterations=2)
    with pytest.raises(NotFiniteError):
        trainer.train()
    assert NOT_FINITE in rules_of(trainer)


def test_every_rule_has_its_run():
    assert {rule for run in BAD_RUNS.values() for rule in run.rules} | {NOT_FINITE} == {rule.name for rule in RULES}
