# SPDX-License-Identifier: Apache-2.0
"""The weight of the entropy bonus: trl's rule, the same from checkpoints, and from an interrupted run."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from tiny import make_prompts

from minimind_hf.trainer.metrics import Metrics
from minimind_hf.trainer.models.entropy_control import STATE_FILE, EntropyControl


def make_control(num_processes=1, **changes) -> EntropyControl:
    settings = {
        "use_adaptive_entropy": True, "entropy_coef": 0.0, "entropy_coef_min": 0.0, "entropy_coef_max": 0.03,
        "entropy_coef_delta": 0.01, "entropy_target": 2.0,
    }  # fmt: skip
    accelerator = SimpleNamespace(reduce=lambda tensor, reduction: tensor * num_processes)
    metrics = Metrics()
    return EntropyControl(SimpleNamespace(**settings | changes), accelerator, lambda: metrics)


def step(control, *parts) -> tuple[float, float]:
    """An optimizer step of parts `(sum of entropies, tokens)`; the weight within it, and the coefficient after it."""
    weight = control.weight
    for entropy_sum, num_tokens in parts:
        control.measure(torch.tensor(entropy_sum), torch.tensor(num_tokens))
        assert control.weight == weight  # of all micro-batches of a step
    control.on_step_end()
    return weight, control.coefficient


def test_the_rule():
    """By hand: up by 0.01 to at most 0.03 at or below 2 nats, down to at least 0 above; a bonus after the former."""
    control = make_control()
    found = [step(control, (total, 4)) for total in (6.0, 8.0, 4.0, 4.0, 9.0, 12.0, 8.0)]
    expected = [(0.0, 0.01), (0.01, 0.02), (0.02, 0.03), (0.03, 0.03), (0.03, 0.02), (0.0, 0.01), (0.0, 0.02)]
    assert found == [pytest.approx(pair) for pair in expected]


def test_the_entropy_is_the_mean_over_all_tokens_of_the_step():
    """Not of the micro-batches' means, which would be (1 + 4) / 2 = 2.5; nor of the last alone."""
    control = make_control()
    step(control, (4.0, 4), (4.0, 1))
    assert control.last_entropy == pytest.approx(8 / 5) and control.coefficient == 0.01
    of_many = make_control(num_processes=3)
    step(of_many, (4.0, 4), (4.0, 1))
    assert of_many.last_entropy == control.last_entropy


def test_a_step_without_tokens_says_nothing():
    control = make_control(entropy_coef=0.02)
    step(control, (12.0, 4))
    before = (control.coefficient, control.last_entropy)
    assert step(control, (0.0, 0)) == (0.0, before[0])
    assert (control.coefficient, control.last_entropy) == before


def test_a_constant_stays_one_and_leaves_no_file(tmp_path):
    control = make_control(use_adaptive_entropy=False, entropy_coef=0.02)
    assert step(control, (1.0, 4)) == step(control, (100.0, 4)) == (0.02, 0.02)
    control.save(str(tmp_path))
    assert not (tmp_path / STATE_FILE).exists()


def test_the_state_is_that_of_trl(tmp_path):
    control = make_control()
    control.save(str(tmp_path))  # before any step
    again = make_control(entropy_coef=0.5)
    again.load(str(tmp_path))
    assert (again.coefficient, again.last_entropy) == (0.0, math.inf)
    step(control, (6.0, 4))
    control.save(str(tmp_path))
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert state == {"entropy_coef": 0.01, "last_world_entropy": 1.5}


def test_a_checkpoint_without_the_state_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    control = make_control(entropy_coef=0.25)
    with caplog.at_level("WARNING"):
        control.load(str(tmp_path))
    assert STATE_FILE in caplog.text and "0.25" in caplog.text
    assert control.coefficient == 0.25


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


ADAPTIVE = {"use_adaptive_entropy": True, "entropy_target": 100.0, "entropy_coef_delta": 0.1, "beta": 0.0}


def test_a_run_moves_its_weight_and_logs_it(make_trainer):
    trainer = make_trainer(**ADAPTIVE, max_steps=3)
    trainer.train()
    logged = [entry["entropy_coef"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx([0.1, 0.2, 0.3]) and trainer.entropy_coef == pytest.approx(0.3)
    # The bonus is given from the second step on: the loss is lower than the policy's part by the weight x entropy.
    for entry, weight in zip(trainer.state.log_history, (0.0, 0.1, 0.2), strict=False):
        bonus = entry["policy_loss"] - entry["loss"]
        assert bonus == pytest.approx(weight * entry["entropy"], rel=1e-3, abs=1e-6)


def test_evaluation_does_not_move_it(make_trainer):
    trainer = make_trainer(**ADAPTIVE, max_steps=2)
    trainer.evaluate(make_prompts(2, seed=1))
    trainer.train()
    assert trainer.entropy_coef == pytest.approx(0.2)


@pytest.mark.parametrize("changes", [{}, {"top_entropy_quantile": 0.5}])
def test_a_resumed_run_equals_one_that_never_stopped(make_trainer, tmp_path, changes):
    settings = {**ADAPTIVE, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, **changes}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert resumed.entropy_coef == whole.entropy_coef
    assert resumed.entropy_control.last_entropy == whole.entropy_control.last_entropy
