# SPDX-License-Identifier: Apache-2.0
"""Every reference value of this package's mathematics, in float64 and float32, gradients included."""

import json
from pathlib import Path

import pytest
import torch
from loss_calls import policy_loss, ppo_policy_loss

from minimind_hf.algorithms import (
    completion_mask,
    gae,
    group_advantages,
    k3,
    masked_whiten,
    total_rewards,
    value_loss,
)

GOLDEN = json.loads(Path(__file__).with_name("golden_math.json").read_text(encoding="utf-8"))


def cases(name: str):
    return pytest.mark.parametrize("case", GOLDEN[name], ids=range(len(GOLDEN[name])))


def tensors(case: dict, dtype: torch.dtype, *names: str) -> list[torch.Tensor]:
    return [torch.tensor(case[name], dtype=dtype) for name in names]


def test_the_copied_values_are_those_of_the_reference_file(golden_dir):
    assert json.loads((golden_dir / "math.json").read_text(encoding="utf-8")) == GOLDEN


@cases("completion_mask")
def test_completion_mask(case):
    mask = completion_mask(torch.tensor(case["ids"]), case["eos"])
    assert mask.dtype == torch.bool
    assert mask.long().tolist() == case["mask"]


@cases("group_advantages")
def test_group_advantages(case, dtype, close):
    (rewards,) = tensors(case, dtype, "rewards")
    close(group_advantages(rewards, case["num_generations"]), case["advantages"])


@cases("gae")
def test_gae(case, dtype, close):
    rewards, values, mask = tensors(case, dtype, "rewards", "values", "mask")
    advantages, returns = gae(rewards, values, mask, case["gamma"], case["lam"])
    close(advantages, case["advantages"])
    close(returns, case["returns"])


@cases("masked_whiten")
def test_masked_whiten(case, dtype, close):
    x, mask = tensors(case, dtype, "x", "mask")
    close(masked_whiten(x, mask), case["out"])


@cases("policy_loss")
def test_policy_loss(case, dtype, close):
    new, old, ref, advantages, mask = tensors(case, dtype, "new", "old", "ref", "advantages", "mask")
    new.requires_grad_()
    settings = {name: case[name] for name in ("loss_type", "beta", "epsilon", "epsilon_high")}
    loss, metrics = policy_loss(new, old, ref, advantages, mask, **settings)
    loss.backward()
    close(loss, case["loss"])
    close(new.grad, case["grad"])
    close(metrics["kl_ref"], case["kl_mean"])


@cases("ppo_loss")
def test_ppo_loss(case, dtype, close):
    new, old, ref, advantages, mask = tensors(case, dtype, "new", "old", "ref", "advantages", "mask")
    values, old_values, returns = tensors(case, dtype, "values", "old_values", "returns")
    new.requires_grad_()
    values.requires_grad_()
    policy, metrics = ppo_policy_loss(
        new, old, ref, advantages, mask, clip_epsilon=case["clip_epsilon"], kl_coef=case["kl_coef"]
    )
    value, _ = value_loss(values, old_values, returns, mask, cliprange_value=case["cliprange_value"])
    loss = policy + case["vf_coef"] * value
    loss.backward()
    close(loss, case["loss"])
    close(value, case["value_loss"])
    close(metrics["policy_loss"], case["policy_loss_without_kl"])
    close(metrics["approx_kl"], case["approx_kl"])
    close(metrics["clip_fraction"], case["clip_fraction"])
    close(metrics["kl_ref"], case["kl_ref"])
    close(new.grad, case["grad_logps"])
    close(values.grad, case["grad_values"])


def test_k3_stays_finite(dtype):
    d = torch.tensor(GOLDEN["k3_overflow"]["log_ratio"], dtype=dtype)
    new = torch.zeros_like(d, requires_grad=True)
    value = k3(new, d)
    value.sum().backward()
    assert value.isfinite().all()
    assert new.grad.isfinite().all() and (new.grad < 0).all()


def test_total_reward_of_the_reward_table(dtype, close):
    table = dict(GOLDEN["reward_table"])
    total = table.pop("total")
    signals = torch.tensor([list(table.values())], dtype=dtype)
    close(total_rewards(signals, [1.0] * len(table), num_generations=1), [total])
