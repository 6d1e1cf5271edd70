# SPDX-License-Identifier: Apache-2.0
"""Runs with speculation: the same completions and rewards as without, logged, and resumed to the last bit."""

import pytest
import torch
from naming import raises_naming
from tiny import make_policy, make_prompts
from transformers import MambaConfig, MambaForCausalLM

from minimind_hf.rollout.torch.pass_costs import ROWS, SIZES, PassCosts

NAMES = ("rollout/acceptance", "rollout/tokens_per_pass")


@pytest.fixture
def costs(monkeypatch):
    """What passes cost, as the engines of a test will measure it."""
    found = {"steps": dict.fromkeys(ROWS, 1.0), "blocks": dict.fromkeys(SIZES, 1.0), "guess": 0.0}
    monkeypatch.setattr(PassCosts, "measure", lambda *args: PassCosts(**found))
    return found


def policy():
    model = make_policy(scale=2.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(6.0)  # sure of most tokens
    return model


def settings(**changes) -> dict:
    return {
        "scripted": False,
        "max_steps": 6,
        "max_completion_length": 24,
        "prompts": make_prompts(4),
        "learning_rate": 1e-3,
        **changes,
    }


def logs(trainer, *names):
    return [[entry.get(name) for name in names] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("shape", [{}, {"dynamic_sampling": True}, {"top_p": 0.95, "max_batch_rows": 3}], ids=str)
def test_the_same_completions_as_without_and_logged(make_trainer, tmp_path, costs, shape):
    plain = make_trainer(policy(), **settings(**shape))
    guessing = make_trainer(policy(), output_dir=str(tmp_path / "guessing"), **settings(speculation="self", **shape))
    for trainer in (plain, guessing):
        trainer.train()
    columns = ("reward", "completions/mean_length", "completions/repetition")
    assert logs(plain, *columns) == logs(guessing, *columns)
    assert all(found == [None, None] for found in logs(plain, *NAMES))
    acceptance, tokens = zip(*logs(guessing, *NAMES), strict=True)
    assert all(0 <= share <= 1 for share in acceptance if share is not None) and max(filter(None, acceptance)) > 0.1
    assert min(tokens) >= 1 and max(tokens) > 1.2


@pytest.mark.parametrize("stop", [2, 5])
def test_a_resumed_run_equals_one_that_never_stopped(make_trainer, tmp_path, costs, stop):
    shape = settings(speculation="self", save_strategy="steps", save_steps=stop, optim="adamw_torch")
    straight = make_trainer(policy(), **shape)
    straight.train()
    costs["blocks"] = dict.fromkeys(SIZES, 100.0)  # what the second process would measure, and must not use
    resumed = make_trainer(policy(), output_dir=str(tmp_path / "resumed"), **shape)
    resumed.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    assert logs(straight, "loss", *NAMES)[stop:] == logs(resumed, "loss", *NAMES)[stop:]
    engines = [trainer._rollouts.engine.state_dict() for trainer in (straight, resumed)]
    assert str(engines[0]) == str(engines[1]) and engines[0]["prompts"]


def test_refused_before_training(make_trainer):
    mamba = MambaForCausalLM(
        MambaConfig(vocab_size=259, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=2, pad_token_id=0)
    )
    with raises_naming(ValueError, "speculation", "'self'", "MambaForCausalLM"):
        make_trainer(mamba, **settings(speculation="self"))
