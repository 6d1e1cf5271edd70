# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of every loss that trl has too, in float64 against trl's own code."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from loss_calls import policy_loss

from minimind_hf import GRPOConfig
from minimind_hf.algorithms import (
    LossSettings,
    decoupled_advantages,
    entropy_bonus,
    entropy_threshold,
    group_advantages,
    high_entropy_mask,
    off_policy_mask,
)

WIDTH = 7
DEFAULTS = {
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "use_bias_correction_kl": False,
}
SOFT = [
    "sapo_temperature_pos", "sapo_temperature_neg",
    "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg",
]  # fmt: skip
SOFT_DEFAULTS = {name: getattr(trl.GRPOConfig, name) for name in SOFT}


class OneProcess:
    num_processes = 1
    sync_gradients = True

    def same(self, tensor, **kwargs):
        return tensor

    gather = reduce = pad_across_processes = same


@pytest.fixture(params=range(3))
def rows(request) -> dict[str, torch.Tensor]:
    """Completions of unequal length; unlike ours, trl's masks have no empty rows or holes here."""
    generator = torch.Generator().manual_seed(request.param)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, WIDTH + 1, (6,), generator=generator)
    logps = normal(6, WIDTH) - 2
    return {
        "logps": logps.requires_grad_(),
        # trl takes the quantile of the entropies in float32, so they are numbers of float32.
        "entropy": normal(6, WIDTH).exp().float().double().requires_grad_(),
        "old": logps.detach() + 0.5 * normal(6, WIDTH),
        "ref": logps.detach() + 0.6 * normal(6, WIDTH),
        "advantages": normal(6),
        "mask": (torch.arange(WIDTH) < lengths[:, None]).long(),
    }


def loss_of_trl(rows, loss_type, top_entropy_quantile=1.0, entropy_coef=0.0, **settings) -> torch.Tensor:
    settings = DEFAULTS | settings
    peer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (rows["logps"], rows["entropy"], None),
        accelerator=OneProcess(),
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(
            delta=settings["delta"],
            use_bias_correction_kl=settings["use_bias_correction_kl"],
            steps_per_generation=1,
            **{name: settings.get(name, default) for name, default in SOFT_DEFAULTS.items()},
        ),
        loss_type=loss_type,
        epsilon_low=settings["epsilon"],
        epsilon_high=settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"],
        beta=settings["beta"],
        importance_sampling_level=settings["importance_sampling_level"],
        off_policy_mask_threshold=settings["off_policy_mask_threshold"],
        get_off_policy_mask=trl.GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=trl.GRPOTrainer.get_gamma_weights,
        top_entropy_quantile=top_entropy_quantile,
        entropy_coef=entropy_coef,
        _entropy_bonus_enabled=entropy_coef != 0,
        use_adaptive_entropy=False,
        use_vllm=False,
        aux_loss_enabled=False,
        max_completion_length=WIDTH,
        current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
    )
    peer.get_high_entropy_mask = lambda *args: trl.GRPOTrainer.get_high_entropy_mask(peer, *args)
    ids = torch.zeros(6, WIDTH, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(6, 1, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": rows["mask"],
        "advantages": rows["advantages"],
        "old_per_token_logps": rows["old"],
        "ref_per_token_logps": rows["ref"],
        "num_items_in_batch": rows["mask"].sum(),
    }
    if "weights" in rows:  # of a correction for the engine's distribution
        inputs["importance_sampling_ratio"] = rows["weights"]
    return trl.GRPOTrainer._compute_loss(peer, None, inputs)


def gradients(loss, rows):
    return torch.autograd.grad(loss, (rows["logps"], rows["entropy"]), allow_unused=True, materialize_grads=True)


def compare(rows, loss_type, settings) -> dict[str, torch.Tensor]:
    """Values and gradients of a loss, against trl's; returns our metrics."""
    theirs = loss_of_trl(rows, loss_type, **settings)
    # trl's cispo averages over tokens, ours over sequences unless told otherwise.
    aggregation = "token" if loss_type == "cispo" else None
    ours, metrics = policy_loss(
        rows["logps"],
        rows["old"],
        rows["ref"],
        rows["advantages"],
        rows["mask"],
        loss_type=loss_type,
        loss_aggregation=aggregation,
        max_completion_length=WIDTH,
        **{**DEFAULTS, **settings},
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(ours, rows), gradients(theirs, rows), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    return metrics


SETTINGS = [
    {},
    {"epsilon_high": 0.28},
    {"delta": 1.3},
    {"beta": 0.3},
    {"beta": 0.3, "use_bias_correction_kl": True},
    {"importance_sampling_level": "sequence"},
    {"importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True, "epsilon": 0.01},
    {"off_policy_mask_threshold": 0.1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "plain")
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo", "cispo"])
def test_loss_and_gradient(rows, loss_type, settings):
    if loss_type == "cispo":
        settings = {**settings, "epsilon_high": 1.2}
    metrics = compare(rows, loss_type, settings)
    if "epsilon" not in settings:
        assert 0 < metrics["clip_region"] < 1 or settings.get("importance_sampling_level") == "sequence"


SOFT_SETTINGS = [
    ("luspo", {"importance_sampling_level": "sequence"}),
    ("luspo", {"importance_sampling_level": "sequence", "beta": 0.3, "epsilon": 0.01, "delta": 1.3}),
    ("luspo", {"beta": 0.3, "use_bias_correction_kl": True}),  # trl warns of its level, and computes
    ("sapo", {}),
    ("sapo", {"sapo_temperature_pos": 0.3, "sapo_temperature_neg": 4.0, "beta": 0.3}),
    ("sapo", {"importance_sampling_level": "sequence", "off_policy_mask_threshold": 0.1}),
    ("vespo", {}),
    ("vespo", {"vespo_k_pos": 0.5, "vespo_lambda_pos": 1.0, "vespo_k_neg": 1.5, "vespo_lambda_neg": 0.25}),
    ("vespo", {"beta": 0.3, "use_bias_correction_kl": True, "off_policy_mask_threshold": 0.1}),
    ("vespo", {"importance_sampling_level": "sequence", "beta": 0.3, "use_bias_correction_kl": True}),
]


@pytest.mark.parametrize("loss_type, settings", SOFT_SETTINGS)
def test_loss_and_gradient_of_sequences_and_soft_gates(rows, loss_type, settings):
    compare(rows, loss_type, settings)


def test_the_defaults_are_those_of_trl():
    for name, default in SOFT_DEFAULTS.items():
        assert getattr(LossSettings(), name) == getattr(GRPOConfig, name) == default


@pytest.mark.parametrize("shift", [-200.0, -30.0, 30.0, 200.0])
@pytest.mark.parametrize("loss_type", ["sapo", "vespo"])
def test_soft_gates_are_finite_far_from_the_policy_that_sampled(loss_type, shift):
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    old = torch.full((2, 3), torch.nan).masked_fill(mask.bool(), -1.0 - shift)
    loss, metrics = policy_loss(
        logps, old, None, torch.tensor([1.0, -1.0]), mask, loss_type=loss_type, beta=0.0, loss_aggregation="sequence"
    )
    (gradient,) = torch.autograd.grad(loss, logps)
    assert loss.isfinite() and gradient.isfinite().all()
    assert (gradient[~mask.bool()] == 0).all() and gradient.abs().max() < 1e-3
    assert not any(name.startswith("clip") for name in metrics)


def test_vespo_takes_the_correction_of_the_engine_into_its_ratio(rows):
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(6, WIDTH, generator=generator, dtype=torch.float64) + 0.5
    weights[0, 0] = 0.0  # as rollout_correction="mask" leaves a token out
    theirs = loss_of_trl({**rows, "weights": torch.where(rows["mask"].bool(), weights, 1.0)}, "vespo")
    ours, _ = policy_loss(
        rows["logps"], rows["old"], None, rows["advantages"], rows["mask"],
        loss_type="vespo", beta=0.0, token_weights=weights,
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(ours, rows), gradients(theirs, rows), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "luspo", "sapo", "cispo"])
def test_sequence_token_has_the_value_of_the_sequence_and_the_gradient_of_the_token(rows, loss_type):
    """GSPO-token was a trainer of its own in trl. Its ratio is that of trl's level "token" to other old logps."""
    level = {"loss_type": loss_type, "beta": 0.0, "epsilon_high": 1.2}
    if loss_type == "cispo":
        level["loss_aggregation"] = "token"
    arguments = (rows["logps"], rows["old"], None, rows["advantages"], rows["mask"])
    ours, _ = policy_loss(*arguments, importance_sampling_level="sequence_token", **level)
    of_sequence, _ = policy_loss(*arguments, importance_sampling_level="sequence", **level)
    torch.testing.assert_close(ours, of_sequence, rtol=1e-12, atol=1e-12)
    mask = rows["mask"]
    mean = ((rows["logps"] - rows["old"]) * mask).sum(1, keepdim=True).detach() / mask.sum(1, keepdim=True)
    theirs = loss_of_trl({**rows, "old": rows["logps"].detach() - mean}, loss_type, epsilon_high=1.2)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(ours, rows), gradients(theirs, rows), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("top_quantile", [0.0, 0.2, 0.7])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "cispo"])
def test_uncertain_tokens_alone_and_entropy_bonus(rows, loss_type, top_quantile):
    theirs = loss_of_trl(rows, loss_type, top_quantile, entropy_coef=0.05, beta=0.1)
    valid = rows["mask"].bool()
    threshold = entropy_threshold(rows["entropy"].detach()[valid].float(), top_quantile)
    chosen = high_entropy_mask(rows["entropy"], rows["mask"], threshold)
    loss, _ = policy_loss(
        rows["logps"],
        rows["old"],
        rows["ref"],
        rows["advantages"],
        rows["mask"],
        loss_type=loss_type,
        loss_aggregation="token" if loss_type == "cispo" else None,
        policy_mask=chosen,
        epsilon_high=0.2,
        beta=0.1,
    )
    ours = loss - 0.05 * entropy_bonus(rows["entropy"], chosen, chosen.sum())
    assert chosen.sum() >= 1 and (top_quantile == 0.0 or chosen.sum() < valid.sum())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(ours, rows), gradients(theirs, rows), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_off_policy_mask_drops_bad_sequences_that_are_far_from_the_policy():
    logps = torch.tensor([[-3.0, -3.0], [-3.0, -3.0], [-1.0, -1.0], [-3.0, -99.0]], dtype=torch.float64)
    old = torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-3.0, -3.0], [-3.0, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0], dtype=torch.float64)[:, None].expand(4, 2)
    # Bad and far; good and far; bad and likelier than before; bad and far only where it does not count.
    assert off_policy_mask(logps, old, advantages, mask, 0.5)[:, 0].tolist() == [False, True, True, True]


def test_the_highest_quantile_of_nothing_keeps_nothing():
    nothing = torch.zeros(1, 2, dtype=torch.long)
    threshold = entropy_threshold(torch.tensor([]), 0.2)
    assert not high_entropy_mask(torch.ones(1, 2), nothing, threshold).any()


def nanstd(values: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """trl divides by n - 1, we by n: the population std."""
    mean = values.nanmean(dim=dim, keepdim=dim is not None)
    return ((values - mean) ** 2).nanmean(dim=dim, keepdim=dim is not None).sqrt()


def test_decoupled_advantages_follow_the_formula_of_trl():
    generator = torch.Generator().manual_seed(0)
    signals = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    signals[:, 1] *= 100
    signals[4:8, 2] = torch.nan  # does not apply to the second group
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    grouped = signals.view(3, 4, 3)
    normalized = (grouped - grouped.nanmean(dim=1, keepdim=True)) / (nanstd(grouped, dim=1) + 1e-4)
    rewards = (normalized.view(12, 3) * weights).nansum(dim=1)
    expected = (rewards - rewards.mean()) / (nanstd(rewards) + 1e-4)
    torch.testing.assert_close(decoupled_advantages(signals, weights, 4), expected, rtol=1e-12, atol=1e-12)


def test_decoupled_advantages_do_not_let_a_wide_signal_drown_a_narrow_one():
    wide = torch.tensor([0.0, 1000.0, 1000.0, 0.0], dtype=torch.float64)
    narrow = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    signals = torch.stack([wide, narrow], dim=1)
    together = group_advantages(wide + narrow, 4)
    assert together[1] > 0.99  # the narrow signal is all but lost
    torch.testing.assert_close(
        decoupled_advantages(signals, [1.0, 1.0], 4),
        torch.tensor([-1.0, 0.0, 1.0, 0.0], dtype=torch.float64) * 2**0.5,
        atol=1e-3,
        rtol=0,
    )


def test_decoupled_advantages_leave_out_what_cannot_be_compared():
    signals = torch.tensor([[1.0, 1.0], [2.0, torch.nan], [3.0, 0.0], [5.0, 5.0], [5.0, 5.0], [5.0, 5.0]])
    advantages = decoupled_advantages(signals, [1.0, 1.0], 3)
    assert advantages[1] == 0  # not scored by a signal that scored others of its group
    assert advantages.isfinite().all() and advantages[3:].unique().numel() == 1
    of_the_log = decoupled_advantages(signals, [1.0, 0.0], 3)
    assert of_the_log[1] != of_the_log[0]  # a signal of weight 0 leaves nothing out
