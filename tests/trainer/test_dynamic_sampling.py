# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling and the memory of prompts: which groups a rollout ends with, and that runs repeat and resume."""

import json

import datasets
import pytest
import torch
from launching import launch_forked
from naming import raises_naming
from tiny import GRPO, ScriptedEngine, collected, make_policy, make_prompts, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig
from minimind_hf.trainer.experience.dynamic_sampling import _chosen, reserve_numbers
from minimind_hf.trainer.experience.prompt_memory import PromptMemory

SETTINGS = {"beta": 0.0, "dynamic_sampling": True}


def teaches(prompt: str) -> bool:
    return ord(prompt[0]) % 2 == 0


def half(prompts, completion_ids, **_):
    """Rewards that differ within a group for every second prompt, and are all 1 for the others."""
    rewards = share_of_a(completion_ids)
    return [reward if teaches(prompt) else 1.0 for prompt, reward in zip(prompts, rewards, strict=True)]


@pytest.fixture
def make(tmp_path):
    def make(reward=half, prompts=16, folder="run", **settings):
        config = GRPOConfig(output_dir=str(tmp_path / folder), **GRPO | SETTINGS | settings)
        return tiny_trainer(config, make_policy(), reward, prompts=make_prompts(prompts), engine=ScriptedEngine(0.8))

    return make


def rollout(trainer, numbers):
    """The experience that `collect` makes of these prompts, after resampling."""
    kept = []
    original = trainer.add_advantages
    trainer.add_advantages = lambda experience: (kept.append(experience), original(experience))
    trainer.collect(numbers)
    return kept[0]


def test_groups_without_variance_are_replaced_by_the_next_prompts_that_teach(make):
    trainer = make()
    numbers = [number for number in range(16) if not teaches(trainer.train_dataset[number]["prompt"])][:2]
    experience = rollout(trainer, numbers)
    assert len(experience.prompts) == 2 and len(experience.rollouts) == 8
    assert all(teaches(prompt["prompt"]) for prompt in experience.prompts)
    reserve = reserve_numbers(16, numbers, (trainer.args.seed, 0), 0, 1)
    expected = [number for number in reserve if teaches(trainer.train_dataset[number]["prompt"])][:2]
    assert [prompt["index"] for prompt in experience.prompts] == expected
    logged = trainer.metrics.flush(trainer.accelerator, 1)
    drawn = 2 + 1 + reserve.index(expected[1])
    assert logged["prompts/drawn"] >= drawn - 1  # the passes draw as many as are missing at a time
    assert logged["prompts/filled"] == 0 and 0 < logged["prompts/without_variance"] < 1


def test_groups_that_teach_stay_and_nothing_is_drawn(make):
    trainer = make()
    numbers = [number for number in range(16) if teaches(trainer.train_dataset[number]["prompt"])][:2]
    experience = rollout(trainer, numbers)
    assert [prompt["index"] for prompt in experience.prompts] == numbers
    assert trainer.metrics.flush(trainer.accelerator, 1)["prompts/drawn"] == 2


def test_when_prompts_are_used_up_groups_put_aside_fill_the_rest(make):
    trainer = make(reward=lambda completions, **_: [1.0] * len(completions), max_resampled=3)
    experience = rollout(trainer, [4, 9])
    assert [prompt["index"] for prompt in experience.prompts] == [4, 9]
    logged = trainer.metrics.flush(trainer.accelerator, 1)
    assert (logged["prompts/drawn"], logged["prompts/filled"], logged["prompts/without_variance"]) == (5, 2, 1)


def test_the_chosen_groups_are_the_first_that_teach_in_the_order_of_prompts():
    assert _chosen([True, False, True, True], 2) == [0, 2]
    assert _chosen([False, False, True, False], 2) == [0, 2]
    assert _chosen([False, False], 2) == [0, 1]


def test_columns_that_rewards_log_follow_their_groups(make):
    def noting(prompts, completion_ids, log_extra, **_):
        log_extra("first", [ids[0] for ids in completion_ids])
        return half(prompts, completion_ids)

    trainer = make(reward=noting)
    experience = rollout(trainer, [0, 1])
    (name,) = experience.notes
    assert experience.notes[name] == [each.completion_ids[0] for each in experience.rollouts]


def test_a_run_repeats_and_resumes_to_the_last_bit(make):
    settings = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "steps_per_generation": 1,
        "prompt_memory": True,
    }
    first, second = (make(folder=name, **settings) for name in ("a", "b"))
    first.train()
    second.train()
    third = make(folder="a", **settings)
    third.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-2")
    weights = [torch.cat([p.flatten() for p in trainer.policy.parameters()]) for trainer in (first, second, third)]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    assert first.prompt_memory._counts == third.prompt_memory._counts != {}


def test_every_trained_token_has_a_gradient(make):
    trainer = make(max_steps=3)
    trainer.train()
    records = [record for record in trainer.state.log_history if "loss" in record]
    assert all(record["frac_reward_zero_std"] == 0 for record in records)
    assert sum(record["prompts/without_variance"] for record in records) > 0


def test_a_stream_is_refused_by_name(tmp_path):
    rows = datasets.Dataset.from_list(make_prompts(8)).to_iterable_dataset()
    for name in ("dynamic_sampling", "prompt_memory"):
        config = GRPOConfig(output_dir=str(tmp_path), **GRPO | {name: True})
        with raises_naming(ValueError, f"{name}=True", "stream"):
            tiny_trainer(config, make_policy(), share_of_a, prompts=rows)


@pytest.mark.slow
def test_processes_make_equally_many_passes(tmp_path):
    launch_forked("dynamic_sampling_worker", tmp_path, processes=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["statuses"] == [0, 0] and report["difference"] == 0.0
    first, second = report["processes"]
    assert len(first["passes"]) == len(second["passes"]) >= 2
    assert set(first["passes"]) == {0} and sum(second["passes"]) > 0
    assert first["memory"] == second["memory"] != {}


# The order of further prompts


def test_processes_draw_different_further_prompts_and_none_of_their_own():
    mine, other = (reserve_numbers(20, [3, 4], (7, 2), process, 2) for process in range(2))
    assert not set(mine) & set(other) and set(mine) | set(other) == set(range(20)) - {3, 4}
    assert mine != reserve_numbers(20, [3, 4], (7, 3), 0, 2)
    assert mine == reserve_numbers(20, [3, 4], (7, 2), 0, 2)


# The memory


def test_the_posterior_mean_and_the_probability_by_hand():
    memory = PromptMemory(0.1)
    assert memory.mean(5) == 0.5 and memory.probability(5) == 1.0
    memory.add([(5, 6, 8), (5, 1, 8), (6, 0, 30)])
    assert memory.mean(5) == pytest.approx(8 / 18)
    assert memory.probability(5) == pytest.approx(4 * 8 / 18 * 10 / 18)
    assert memory.probability(6) == pytest.approx(4 / 32 * 31 / 32) or memory.probability(6) == 0.1
    assert memory.shares() == (0.0, 0.5)


def test_prompts_are_kept_as_often_as_their_probability_says():
    memory = PromptMemory(0.2)
    memory.add([(0, 100, 100), (1, 5, 10)])
    kept = [sum(memory.keeps(row, (seed,)) for seed in range(2000)) / 2000 for row in (0, 1, 2)]
    # Standard deviations of 0.009 at most: six of them are exceeded once in 5e8 runs.
    assert kept[0] == pytest.approx(0.2, abs=0.054) and kept[1:] == [1.0, 1.0]


def test_solved_prompts_are_skipped_and_others_take_their_place(make):
    trainer = make(prompt_memory=True, prompt_memory_floor=0.01, dynamic_sampling=False)
    trainer.prompt_memory.add([(row, 400, 400) for row in range(8)])
    chosen = trainer.choose_prompts([0, 1])
    assert len(chosen) == 2 and all(number >= 8 for number in chosen)
    logged = trainer.metrics.flush(trainer.accelerator, 1)
    assert logged["prompts/skipped"] == 2


def test_a_data_set_that_is_all_solved_is_drawn_as_it_comes(make):
    trainer = make(prompt_memory=True, prompt_memory_floor=0.001)
    trainer.prompt_memory.add([(row, 10_000, 10_000) for row in range(16)])
    assert sorted(trainer.choose_prompts([3, 7])) == [3, 7]


def test_the_memory_counts_completions_above_the_threshold(make):
    trainer = make(prompt_memory=True, solved_above=0.99)
    experience = rollout(trainer, [0, 1])
    assert len(experience.prompts) == 2
    for row in range(16):
        if row not in trainer.prompt_memory._counts:
            continue
        solved, tried = trainer.prompt_memory._counts[row]
        assert tried == 4 and (solved == 4) != teaches(trainer.train_dataset[row]["prompt"])


def test_off_unless_asked_for(make):
    plain = make(dynamic_sampling=False)
    assert collected(plain, 2).prompts == [plain.train_dataset[number] for number in range(2)]
    assert plain.prompt_memory is None
