# SPDX-License-Identifier: Apache-2.0
"""What must never change the mathematics, and what must not move a parameter."""

import copy

import pytest
import torch
from tiny import ScriptedEngine, collected, make_llama, make_policy, make_prompts, without_ties

from minimind_hf import GRPOTrainer
from minimind_hf.algorithms import k3
from minimind_hf.trainer import grpo
from minimind_hf.trainer.experience.parts import split_by_tokens
from minimind_hf.trainer.metrics import Metrics


def parameters(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(make_trainer, **changes) -> torch.Tensor:
    trainer = make_trainer(**changes)
    trainer.train()
    return parameters(trainer.model)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_type": "grpo", "beta": 0.0},
        {"loss_aggregation": "token"},
        {"loss_aggregation": "constant", "mask_truncated_completions": True},
        {"mask_truncated_completions": True},
        {"scale_rewards": "batch"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_batch_and_accumulation_do_not_change_two_sgd_steps(make_trainer, settings):
    shapes = [(8, 1), (2, 4), (1, 8), (4, 2)]
    start = parameters(make_policy())
    results = [
        trained(make_trainer, per_device_train_batch_size=size, gradient_accumulation_steps=steps, **settings)
        for size, steps in shapes
    ]
    assert (results[0] - start).abs().max() > 1e-3  # it trained
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-6, rtol=0)


def test_rollouts_larger_than_a_step_use_the_same_completions(make_trainer):
    """Four micro-batches a rollout, two a step: two steps from one rollout, as steps of one whole rollout are not."""
    trainer = make_trainer(per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4)
    trainer.train()
    assert trainer.rollouts_made == 1
    assert len(trainer.buffer) == 0


def test_iterations_pass_over_one_rollout(make_trainer):
    trainer = make_trainer(num_iterations=2, max_steps=4)
    trainer.train()
    assert trainer.rollouts_made == 2
    first, second = (entry["ratio_mean"] for entry in trainer.state.log_history[:2])
    assert first == pytest.approx(1, abs=1e-5)
    assert abs(second - 1) > 1e-4


@pytest.mark.parametrize("make_model", [make_policy, make_llama, lambda: make_policy(use_moe=True)], ids="mlx")
def test_before_any_update_the_ratio_is_1(make_trainer, make_model):
    trainer = make_trainer(make_model(), scripted=False, loss_type="grpo", epsilon=1e-4, learning_rate=0.0)
    experience = collect(trainer)
    for batch in trainer.micro_batches(experience):
        logps = trainer.token_scores(trainer.model, batch).logps
        log_ratio = (logps - batch.old_logps)[batch.padded()[3].bool()]
        assert log_ratio.abs().max() < 1e-5
    trainer.train()
    for entry in trainer.state.log_history[:2]:
        assert entry["clip_ratio/region_mean"] == 0
        assert entry["kl_ref"] == pytest.approx(0, abs=1e-9)


def collect(trainer, count: int = 3):
    return collected(trainer, count)


def gradient(trainer, batches) -> torch.Tensor:
    trainer.model.zero_grad()
    denominator = trainer.loss_denominator(batches)
    for batch in batches:
        trainer.loss(trainer.model, batch, denominator, Metrics()).backward()
    return torch.cat([parameter.grad.flatten().clone() for parameter in trainer.model.parameters()])


def test_equal_rewards_give_no_gradient_but_that_of_the_kl(make_trainer):
    def equal(completion_ids, **kwargs):
        return [0.1] * len(completion_ids)

    without_kl = make_trainer(reward=equal, beta=0.0)
    batches = without_kl.micro_batches(collect(without_kl))
    assert torch.count_nonzero(gradient(without_kl, batches)) == 0

    with_kl = make_trainer(reward=equal, beta=0.3)
    with torch.no_grad():
        for parameter in with_kl.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batches = with_kl.micro_batches(collect(with_kl))
    found = gradient(with_kl, batches)
    with_kl.model.zero_grad()
    rows = torch.zeros(())
    for batch in batches:
        logps, mask = with_kl.token_scores(with_kl.model, batch).logps, batch.loss_mask
        per_token = k3(logps, batch.ref_logps) * mask
        rows = rows + (per_token.sum(1) / mask.sum(1)).sum()
    (0.3 * rows / sum(len(batch.loss_mask) for batch in batches)).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in with_kl.model.parameters()])
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_masked_slots_holding_nan_change_nothing(make_trainer):
    trainer = make_trainer(mask_truncated_completions=True)
    batches = trainer.micro_batches(collect(trainer))
    expected = gradient(trainer, batches)
    for batch in batches:
        masked_out = batch.loss_mask == 0
        assert masked_out.any()
        for name in ("old_logps", "ref_logps"):
            setattr(batch, name, getattr(batch, name).masked_fill(masked_out, float("nan")))
    assert torch.equal(gradient(trainer, batches), expected)


def test_a_step_of_truncated_completions_alone_moves_nothing(make_trainer):
    """Not even by the momentum of the step before, or by weight decay."""
    states = []

    class TruncatedAfterOneStep(ScriptedEngine):
        def generate(self, *args):
            states.append(copy.deepcopy(self.model.state_dict()))
            rollouts = super().generate(*args)
            for rollout in rollouts:
                rollout.finish_reason = "stop" if len(states) == 1 else "length"
            return rollouts

    trainer = make_trainer(
        engine=TruncatedAfterOneStep(0.8),
        mask_truncated_completions=True,
        optim="adamw_torch",
        weight_decay=0.1,
        max_steps=3,
    )
    trainer.train()
    log = trainer.state.log_history
    assert [entry["completions/clipped_ratio"] for entry in log[:3]] == [0.0, 1.0, 1.0]
    assert log[0]["grad_norm"] > 0
    assert [entry["loss"] for entry in log[1:3]] == [0.0, 0.0]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name, tensor in states[1].items():
        assert torch.equal(tensor, states[2][name]), name
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name


def test_a_completion_left_out_by_none_is_in_no_statistic(make_trainer):
    def first_of_each_group_unknown(completion_ids, **kwargs):
        return [None if i % 4 == 0 else float(i % 4) for i in range(len(completion_ids))]

    experience = collect(make_trainer(reward=first_of_each_group_unknown))
    # Rewards 1, 2, 3: mean 2, population std sqrt(2/3)
    scale = (2 / 3) ** 0.5 + 1e-4
    expected = torch.tensor([0, -1 / scale, 0, 1 / scale] * 3)
    torch.testing.assert_close(experience.advantages, expected, atol=1e-5, rtol=0)


def test_prompts_of_a_run_are_a_pure_function_of_the_seed(make_trainer):
    def seen(seed):
        numbers = []

        def reward(completion_ids, number, **kwargs):
            numbers.extend(number)
            return [0.0] * len(completion_ids)

        make_trainer(reward=reward, seed=seed, max_steps=9, prompts=make_prompts(5)).train()
        return numbers

    first = seen(1)
    assert first == seen(1)
    assert first != seen(2)
    # 5 prompts, 2 a rollout, 4 completions each: an epoch is 2 rollouts of 4 different prompts.
    epochs = [set(first[i : i + 16]) for i in range(0, 64, 16)]
    assert all(len(epoch) == 4 for epoch in epochs)
    assert len({tuple(first[i : i + 16]) for i in range(0, 64, 16)}) > 1


@pytest.mark.parametrize("budget", [1, 20, 45, 10_000])
def test_a_token_budget_does_not_change_two_sgd_steps(make_trainer, budget):
    whole = trained(make_trainer, per_device_train_batch_size=16)
    split = trained(make_trainer, per_device_train_batch_size=16, max_tokens_per_microbatch=budget)
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=0)


def tokens_of(batch) -> int:
    """Tokens that a pass computes: completions, and each group's prompt once."""
    prompts = [len(batch.prompt_ids[rows[0]]) for rows in batch.groups()]
    return sum(prompts) + sum(map(len, batch.completion_ids))


def test_the_budget_holds_for_every_pass_and_changes_none(make_trainer, monkeypatch):
    """Reference, correction of the rollout, update and evaluation."""
    scores = GRPOTrainer.token_scores

    def run(**changes):
        passes = []

        def counted(self, model, batch, **options):
            passes.append(tokens_of(batch))
            return scores(self, model, batch, **options)

        monkeypatch.setattr(GRPOTrainer, "token_scores", counted)
        sizes = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 16}
        trainer = make_trainer(rollout_correction="truncate", **sizes, **changes)
        trainer.train()
        return passes, trainer.evaluate(make_prompts(4)), parameters(trainer.model)

    whole, expected_log, expected = run()
    passes, log, found = run(max_tokens_per_microbatch=45)
    assert len(whole) == 9 and min(whole) > 45  # 3 for each of 2 steps and of the evaluation
    assert max(passes) <= 45
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for name in ("eval_loss", "eval_kl_ref", "eval_entropy", "eval_sampling/k3"):
        assert log[name] == pytest.approx(expected_log[name], abs=1e-5), name


def test_parts_keep_to_the_budget_and_hold_every_completion_once(make_trainer):
    trainer = make_trainer(per_device_train_batch_size=24)
    (batch,) = trainer.micro_batches(collect(trainer, count=6))
    parts = split_by_tokens(batch, 40)
    assert sorted(row for part in parts for row in part.rows_in_whole) == list(range(24))
    assert sum(part.share for part in parts) == pytest.approx(1)
    sizes = []
    for part in parts:
        sizes.append(tokens_of(part))
        assert part.loss_mask.shape == (len(part), max(map(len, part.completion_ids)))
    assert max(sizes) <= 40
    assert len(parts) <= 2 * sum(sizes) / 40  # no more parts than a fair packing needs
    assert split_by_tokens(batch, None) == [batch]


def test_whole_groups_stay_together_beyond_the_budget(make_trainer):
    trainer = make_trainer(per_device_train_batch_size=24)
    (batch,) = trainer.micro_batches(collect(trainer, count=6))
    parts = split_by_tokens(batch, 1, whole_groups=True)
    assert [part.group_ids for part in parts] == [[number] * 4 for number in range(6)]
    (whole,) = split_by_tokens(batch, 10_000, whole_groups=True)
    assert whole.completion_ids == batch.completion_ids


def test_a_cpu_computes_group_by_group_unasked_with_the_same_result(make_trainer, monkeypatch):
    def trained_and_passes(tokens):
        monkeypatch.setattr(grpo, "CPU_TOKENS", tokens)
        passes = []
        scores = GRPOTrainer.token_scores

        def counted(self, model, batch, **options):
            passes.append(len(batch))
            return scores(self, model, batch, **options)

        with monkeypatch.context() as patch:
            patch.setattr(GRPOTrainer, "token_scores", counted)
            return trained(make_trainer, reward=without_ties, per_device_train_batch_size=16, beta=0.0), passes

    whole, passes = trained_and_passes(10_000)
    assert set(passes) == {16}
    split, passes = trained_and_passes(1)
    assert set(passes) == {4}
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=0)


def test_router_loss_of_parts_weighs_as_one_micro_batch(make_trainer):
    def logs(**changes):
        trainer = make_trainer(make_policy(use_moe=True), per_device_train_batch_size=16, beta=0.0, **changes)
        trainer.train()
        return trainer.state.log_history[0]

    # One group a part or all in one: the balance of expert loads is not the same, its weight is.
    one, parts = logs(router_aux_loss_coef=0.5), logs(router_aux_loss_coef=0.5, max_tokens_per_microbatch=45)
    assert parts["policy_loss"] == pytest.approx(one["policy_loss"], abs=1e-5)
    assert parts["loss"] - parts["policy_loss"] == pytest.approx(one["loss"] - one["policy_loss"], rel=0.2)
