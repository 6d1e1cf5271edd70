# SPDX-License-Identifier: Apache-2.0
"""Evaluation counts each prompt once, in whatever batches and by however many processes."""

import pytest
from ppo_tools import make_trainer as make_ppo_trainer
from tiny import make_policy, make_prompts, share_of_a

from minimind_hf.trainer import evaluating
from minimind_hf.trainer.experience.sampler import evaluation_batches


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("num_prompts", [1, 5, 8, 13])
def test_every_prompt_belongs_to_one_process(num_prompts, size, num_processes):
    shares = [evaluation_batches(num_prompts, size, process, num_processes) for process in range(num_processes)]
    shapes = {tuple(len(batch) for batch in share) for share in shares}
    assert len(shapes) == 1  # the same work for all: nobody waits in an exchange that others do not enter
    assert max(next(iter(shapes))) <= size
    drawn = [number for share in shares for batch in share for number in batch]
    assert sorted(number for number in drawn if number is not None) == list(range(num_prompts))
    assert drawn.count(None) < num_processes
    for share in shares:
        assert all(None not in batch for batch in share[:-1])
        assert share[-1] == sorted(share[-1], key=lambda number: number is None)


SETTINGS = {
    "grpo": {"per_device_train_batch_size": 4, "num_generations_eval": 4},
    "batch": {"scale_rewards": "batch", "mask_truncated_completions": True, "num_generations_eval": 2},
    "gdpo": {"multi_objective_aggregation": "normalize_then_sum", "loss_aggregation": "token"},
    "ppo": {"mini_batch_size": 2, "kl_coef": 0.3, "rollout_correction": "truncate"},
}


@pytest.fixture(params=SETTINGS)
def evaluate(request, make_trainer, tmp_path):
    """Returns what is measured on five prompts, in batches of so many, and the prompts that were scored."""

    def evaluate(size: int) -> tuple[dict, list]:
        scored = []

        def reward(completion_ids, number, **kwargs):
            scored.extend(number)
            return share_of_a(completion_ids)

        is_ppo = request.param == "ppo"
        settings = {"reward": reward, "per_device_eval_batch_size": size, **SETTINGS[request.param]}
        trainer = make_ppo_trainer(tmp_path, **settings) if is_ppo else make_trainer(**settings)
        trainer.args.per_device_eval_batch_size *= trainer._num_generations_eval
        return numbers(trainer.evaluate(make_prompts(5))), scored

    return evaluate


def numbers(metrics: dict) -> dict:
    """What an evaluation measured, without the time it took."""
    return {name: value for name, value in metrics.items() if "second" not in name and "runtime" not in name}


def test_batches_change_no_number(evaluate):
    expected, scored = evaluate(5)
    assert {"eval_loss", "eval_reward", "eval_policy_loss", "eval_kl_ref"} <= expected.keys()
    for size in (1, 2):
        found, scored_too = evaluate(size)
        assert found == pytest.approx(expected, abs=1e-6)
        assert scored_too == scored


def test_stand_ins_change_no_number_and_are_not_scored(evaluate, monkeypatch):
    expected, scored = evaluate(3)
    monkeypatch.setattr(evaluating, "evaluation_batches", lambda *_: [[0, 1, 2], [3, 4, None, None]])
    found, scored_too = evaluate(3)
    assert found == pytest.approx(expected, abs=1e-6)
    assert scored_too == scored
    assert set(scored) == set(range(5))


def test_a_process_of_stand_ins_alone_measures_nothing(evaluate, monkeypatch):
    monkeypatch.setattr(evaluating, "evaluation_batches", lambda *_: [[None]])
    found, scored = evaluate(1)
    assert scored == []
    assert "eval_reward" not in found and "eval_completions/mean_length" not in found
    assert found["eval_loss"] == 0


def test_the_router_loss_of_an_evaluation_weighs_as_in_one_step(make_trainer):
    trainer = make_trainer(
        make_policy(use_moe=True), router_aux_loss_coef=0.5, beta=0.0, gradient_accumulation_steps=2
    )
    before = trainer.evaluate(make_prompts(4))
    assert before["eval_loss"] == pytest.approx(before["eval_policy_loss"] + 0.5 * before["eval_aux_loss"], abs=1e-6)
    trainer.train()
    after = trainer.evaluate(make_prompts(4))
    assert after["eval_loss"] == pytest.approx(after["eval_policy_loss"] + 0.5 * after["eval_aux_loss"], abs=1e-6)


def test_a_sample_of_an_evaluation_is_a_prompt(make_trainer):
    metrics = make_trainer(per_device_eval_batch_size=8).evaluate(make_prompts(5))
    # 5 prompts, which transformers takes for one step of at most 8
    assert metrics["eval_samples_per_second"] == pytest.approx(5 * metrics["eval_steps_per_second"], rel=0.01)
