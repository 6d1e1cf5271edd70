# SPDX-License-Identifier: Apache-2.0
"""Trainers whose environments are played on stand-ins for SGLang servers."""

import pytest
import torch
from chat_tokenizers import chat_tokenizer
from naming import raises_naming
from served_episodes import restart
from sglang_double import SGLangDouble, aborts, takes
from tiny import GRPO, PPO, make_policy

from minimind_hf import Conversation, GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, Reply
from minimind_hf.agent import AgentError
from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights

TOKENIZER, ENDS = chat_tokenizer("qwen3")
ROWS = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}]} for n in range(8)]
EPISODES = {"max_completion_length": 96, "max_turn_length": 8, "thinking_ratio": 0.0}


class Game(Conversation):
    """Three turns; the reward of each depends on its length."""

    def reset(self, **row):
        self.turns = 0

    def respond(self, turn):
        self.turns += 1
        return Reply("Go on.", reward=float(len(turn) % 3), done=self.turns == 3)


def policy(seed: int = 0):
    model = make_policy(seed, vocab_size=len(TOKENIZER))
    model.generation_config.eos_token_id = [2, *ENDS]  # 2 is what the stand-in ends its turns with
    return model


@pytest.fixture
def doubles(tmp_path):
    model = policy(seed=9)
    (tmp_path / "served").mkdir()
    write_weights(exported_weights(model), exported_config(model), tmp_path / "served")
    doubles = [SGLangDouble(tmp_path / "served") for _ in range(2)]
    yield doubles
    for double in doubles:
        double.stop()


def make_trainer(tmp_path, doubles, trainer_class=GRPOTrainer, factory=Game, **changes):
    base, config_class = (GRPO, GRPOConfig) if trainer_class is GRPOTrainer else (PPO, PPOConfig)
    settings = {
        "output_dir": str(tmp_path / "run"),
        "rollout_engine": "sglang",
        "sglang_base_url": [double.url for double in doubles],
        "server_timeout": 60,
        "max_sampling_k3": None,
    }
    args = config_class(**base | EPISODES | settings | changes)
    return trainer_class(policy(), None, args, ROWS, processing_class=TOKENIZER, environment_factory=factory)


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, PPOTrainer])
def test_environments_are_trained_on_with_servers_and_every_token_agrees(tmp_path, doubles, trainer_class):
    trainer = make_trainer(tmp_path, doubles, trainer_class)
    trainer.train()
    rollouts = [log for log in trainer.state.log_history if {"loss", "sampling/staleness"} <= log.keys()]
    first = rollouts[0]
    assert first["sampling/audit"] < 1e-4  # of every episode, at every token of the policy
    assert first["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    for log in rollouts:
        assert log["sampling/sampling_logp_difference/max"] < 1e-4
        assert log["sampling/staleness"] == 0
        assert 0.5 < log["sampling/cached_share"] < 1
        assert 1.5 < log["episodes/turns"] <= 3
        assert log["rewards/Game/mean"] == pytest.approx(log["reward"], abs=1e-5)
    assert [len(double.versions) for double in doubles] == [len(rollouts)] * 2  # never within an episode
    assert all(double.requests["/generate"] for double in doubles)
    trainer.end()


def test_aborts_and_a_restart_in_mid_episode_change_nothing(tmp_path, doubles):
    double, runs = doubles[0], []
    for faults in ([], [*[takes(0)] * 6, aborts(1), takes(0), aborts(1), *[takes(0)] * 4, restart(double)]):
        double.next("/generate", takes(0), takes(0), *faults)
        runs.append(make_trainer(tmp_path, doubles[:1]))
        runs[-1].train()
        runs[-1].end()
    assert double.starts == 2
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_an_evaluation_logs_the_share_of_cached_tokens_too(tmp_path, doubles):
    trainer = make_trainer(tmp_path, doubles, per_device_eval_batch_size=8)
    metrics = trainer.evaluate(trainer.train_dataset)
    assert 0.3 < metrics["eval_sampling/cached_share"] < 1
    trainer.end()


def test_an_environment_that_fails_on_a_server_ends_the_run_by_its_name(tmp_path, doubles):
    class Fails(Game):
        def respond(self, turn):
            raise OSError("no disk")

    with raises_naming(AgentError, "Fails", "respond", "no disk"):
        make_trainer(tmp_path, doubles, factory=Fails).train()
