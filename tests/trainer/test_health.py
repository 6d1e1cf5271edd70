# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself: once per episode, in a file, through a resume, and a stop before it is too late."""

import json
import logging
import math
import zlib

import pytest
import torch
from naming import assert_names, names, raises_naming
from ppo_tools import make_trainer as make_ppo
from tiny import ScriptedEngine, make_prompts, make_tokenizer
from transformers import TrainerCallback

from minimind_hf.health.monitor import EPISODE_ENDS_AFTER, HealthMessage, HealthMonitor, read_health
from minimind_hf.health.rules import Rule
from minimind_hf.reports.record import read_run
from minimind_hf.trainer.models.weights import NotFiniteError


def rules_of(trainer) -> set[str]:
    return {message.rule for message in trainer.health.messages}


def make_long_trainer(make_trainer, **settings):
    """Scripted completions, of up to 20 tokens instead of 6: not short."""
    trainer = make_trainer(max_completion_length=21, **settings)
    trainer._rollouts.engine = ScriptedEngine(trainer.args.temperature, longest=20)
    return trainer


def constant(completions, **kwargs):
    return [0.5] * len(completions)


# An episode


def test_once_per_episode():
    above = Rule("above", "Too high", lambda curves, limits: _above_one(curves), "", "", ("lower it", "or not"))
    monitor = HealthMonitor([above])
    high, low = {"x": 2.0}, {"x": 0.0}

    def said(log, times):
        return [message.step for step in range(times) for message in monitor.observe(step, log)]

    assert said(high, 5) == [0]
    assert said(low, EPISODE_ENDS_AFTER - 1) == []
    assert said(high, 3) == []  # the episode goes on
    assert said(low, EPISODE_ENDS_AFTER) == []
    assert said(high, 3) == [0]  # a new one


def _above_one(curves):
    return "x is 2" if curves.last("x", 1)[0] > 1 else None


def test_a_message_is_one_line_with_what_to_try():
    message = HealthMessage(7, "rule", "Too high", "x is 2", "lower it; or leave it")
    assert str(message) == "step 7: Too high: x is 2. Try: lower it; or leave it."


# Runs that should make a rule speak; test_health_runs has one for every rule


def test_constant_reward(make_trainer, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    with caplog.at_level("WARNING"):
        trainer = make_long_trainer(make_trainer, reward=constant, max_steps=8)
        trainer.train()
    assert rules_of(trainer) == {"reward_constant"}
    (message,) = trainer.health.messages
    assert message.step == 5
    assert_names(message.found, 0.5)
    assert_names(caplog.text, "step 5", message.title, message.found)
    assert read_health(trainer.args.output_dir) == trainer.health.messages


class Writes(ScriptedEngine):
    """Writes what a test wants it to, with log-probabilities that are not the trainer's: engine_mismatch."""

    def __init__(self, write):
        super().__init__(0.8)
        self.write = write

    def _group(self, prompt, count):
        rollouts = super()._group(prompt, count)
        for number, rollout in enumerate(rollouts):
            rollout.completion_ids, rollout.finish_reason = self.write(number)
            rollout.logprobs = [-1.0] * len(rollout.completion_ids)
        return rollouts


def noise_of_ids(completion_ids, **kwargs):
    return [float(zlib.crc32(str(ids).encode()) % 7) for ids in completion_ids]


@pytest.mark.parametrize("closes", [False, True])
def test_thinking_that_is_not_closed(make_trainer, closes):
    text = "I think so</think>yes" if closes else "I think so, yes but no"
    ids = make_tokenizer()(text, add_special_tokens=False)["input_ids"]
    prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(12)]
    settings = {"thinking_ratio": 1.0, "max_steps": 10, "learning_rate": 0.0, "max_completion_length": len(ids) + 2}
    settings["max_sampling_k3"] = None  # the engine makes its log-probabilities up
    trainer = make_trainer(reward=noise_of_ids, prompts=prompts, **settings)
    trainer._rollouts.engine = Writes(lambda number: ([*ids, 10 + number, 2], "stop"))
    trainer.train()
    assert rules_of(trainer) - {"engine_mismatch"} == (set() if closes else {"thinking_missing"})
    assert trainer.state.log_history[0]["completions/thinking_closed"] == float(closes)


# A run that breaks


def breaks_at(trainer, step: int) -> None:
    compute = trainer.loss

    def loss(model, batch, *rest):
        value = compute(model, batch, *rest)
        return value * math.nan if trainer.state.global_step == step else value

    trainer.loss = loss


def test_a_loss_that_is_nan_stops_before_the_update(make_trainer):
    trainer = make_trainer(max_steps=6, save_strategy="steps", save_steps=2, gradient_accumulation_steps=2)
    breaks_at(trainer, step=3)
    weights = []
    trainer.add_callback(remembering(weights))
    folder = trainer.args.output_dir
    with raises_naming(NotFiniteError, "step 4", "loss", "nan", "micro-batch 1", f"{folder}/checkpoint-2"):
        trainer.train()
    assert trainer.state.global_step == 3
    for parameter, before in zip(trainer.model.parameters(), weights[-1], strict=True):
        assert torch.equal(parameter, before)
    (message,) = read_health(trainer.args.output_dir)
    assert message.rule == "not_finite" and message.step == 4
    assert message.found.endswith("checkpoint-2")
    rows = {int(number) for number in message.found.split("rows ")[1].split(" of")[0].split(", ")}
    assert len(rows) == 2 and rows <= set(range(12))


def remembering(weights: list):
    class Remember(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            weights.append([parameter.detach().clone() for parameter in model.parameters()])

    return Remember()


def test_a_gradient_that_is_infinite_stops_too(make_trainer):
    trainer = make_trainer(max_steps=3, max_grad_norm=0.0)
    trainer.model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    with raises_naming(NotFiniteError, "step 1", "gradient", "rows", "save_steps") as raised:
        trainer.train()
    assert names(str(raised.value), "inf") or names(str(raised.value), "nan")


def test_so_does_ppo_for_either_model(tmp_path):
    trainer = make_ppo(tmp_path)
    trainer._actor_critic.critic.score.weight.register_hook(lambda gradient: gradient * math.nan)
    with raises_naming(NotFiniteError, "step 1", "gradient", "nan"):
        trainer.train()


def test_the_run_goes_on_from_the_last_good_checkpoint_and_remembers(make_trainer):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    trainer = make_long_trainer(make_trainer, **settings)
    breaks_at(trainer, step=5)
    with pytest.raises(NotFiniteError):
        trainer.train()
    again = make_long_trainer(make_trainer, **settings)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6
    assert [message.step for message in again.health.messages] == [6]
    # A fresh run in the same folder begins with nothing.
    fresh = make_long_trainer(make_trainer, **settings)
    fresh.train()
    assert fresh.health.messages == [] == read_health(fresh.args.output_dir)


def test_episodes_go_on_through_a_resume(make_trainer):
    settings = {"reward": constant, "save_strategy": "steps", "save_steps": 4}
    make_long_trainer(make_trainer, max_steps=9, **settings).train()
    again = make_long_trainer(make_trainer, max_steps=9, **settings)
    again.train(resume_from_checkpoint=f"{again.args.output_dir}/checkpoint-8")
    assert [(message.step, message.rule) for message in again.health.messages] == [(5, "reward_constant")]
    early = make_long_trainer(make_trainer, max_steps=6, **settings)
    early.train(resume_from_checkpoint=f"{early.args.output_dir}/checkpoint-4")
    assert [(message.step, message.rule) for message in early.health.messages] == [(5, "reward_constant")]
    lines = (again.health.path).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [5]


def test_it_can_be_switched_off(make_trainer):
    trainer = make_trainer(reward=constant, max_steps=6, health=False)
    trainer.train()
    assert trainer.health is None and read_health(trainer.args.output_dir) == []


def test_switched_off_it_leaves_no_messages_of_an_earlier_run(make_trainer):
    with_messages = make_trainer(reward=constant, max_steps=6, save_strategy="steps", save_steps=5)
    with_messages.train()
    resumed = make_trainer(max_steps=6, health=False)
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-5")
    assert read_run(resumed.args.output_dir).health  # still the same run
    make_trainer(max_steps=1, health=False, save_strategy="steps", save_steps=1).train()
    assert read_run(resumed.args.output_dir).health == []


def test_a_run_in_which_nothing_is_wrong_hears_nothing(make_trainer):
    """Whole runs that learn are among the recorded ones, in test_health_checks."""
    trainer = make_long_trainer(make_trainer, max_steps=25, learning_rate=0.01)
    trainer.train()
    assert trainer.health.messages == []
