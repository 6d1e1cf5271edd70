# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling within a running rollout: the same groups as by passes, and runs that repeat and resume."""

import asyncio
import json
import random
import time

import pytest
import torch
from agent_runs import Game, SometimesRewarding, agent_trainer
from launching import launch_forked
from sglang_double import SGLangDouble, aborts, takes
from tiny import GRPO, make_policy, make_prompts, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig, Rollout, SamplingParams, TorchEngine
from minimind_hf.event_loop import Pending
from minimind_hf.rollout.exported_weights import exported_config, exported_weights, write_weights
from minimind_hf.trainer.experience.dynamic_sampling import (
    DynamicSampling,
    _chosen,
    groups_that_teach,
    reserve_numbers,
)
from minimind_hf.trainer.experience.experience import Experience
from minimind_hf.trainer.experience.refilling import LOOKS, Refilling
from minimind_hf.trainer.metrics import Metrics

SETTINGS = {"beta": 0.0, "dynamic_sampling": True}


def half(prompts, completion_ids, **_):
    """Rewards that can differ within a group for every second prompt, and are all 1 for the others."""
    rewards = share_of_a(completion_ids)
    return [reward if ord(prompt[0]) % 2 == 0 else 1.0 for prompt, reward in zip(prompts, rewards, strict=True)]


def long_or_not(completion_ids, **_):
    """Rewards of which a group often has only one: whether a completion is longer than two tokens."""
    return [float(len(ids) > 2) for ids in completion_ids]


@pytest.fixture
def make(tmp_path):
    def make(reward=half, prompts=24, folder="run", engine=None, policy=None, **settings):
        config = GRPOConfig(output_dir=str(tmp_path / folder), **GRPO | SETTINGS | settings)
        return tiny_trainer(config, policy or make_policy(), reward, prompts=make_prompts(prompts), engine=engine)

    return make


def collect(trainer, numbers):
    """The experience that `collect` makes of these prompts, and the micro-batches."""
    kept = []
    original = trainer.add_advantages
    trainer.add_advantages = lambda experience: (kept.append(experience), original(experience))
    trainer.fill_buffer(numbers)
    return kept[0]


def indices(experience):
    return [prompt["index"] for prompt in experience.prompts]


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.parameters()])


# Against what is drawn and scored all at once


@pytest.mark.parametrize("reward", [half, long_or_not])
@pytest.mark.parametrize("max_resampled", [1, 3, 20])
@pytest.mark.parametrize("max_batch_rows", [3, 8, 64])
def test_the_chosen_groups_are_those_of_all_prompts_drawn_at_once(make, reward, max_resampled, max_batch_rows):
    engine = TorchEngine(max_batch_rows=max_batch_rows)
    trainer = make(reward, engine=engine, max_resampled=max_resampled)
    numbers = [5, 2]
    found = collect(trainer, numbers)
    logged = trainer.metrics.flush(trainer.accelerator, 1)

    args = trainer.args
    order = numbers + reserve_numbers(24, numbers, (args.seed, 0), 0, 1)[:max_resampled]
    prompts = trainer.read_prompts(order)
    sampling = SamplingParams(args.max_completion_length, args.temperature, (2,), trainer.sampling_seed(0))
    everything = Experience(prompts, 4, metrics=Metrics())
    engine.sync_weights(make_policy(), 0)
    everything.rollouts = engine.generate(everything.prompt_ids, 4, sampling)
    trainer.score(everything)
    useful = groups_that_teach(everything)
    drawn = next((n for n in range(2, len(order) + 1) if n - useful[:n].count(False) == 2), len(order))
    chosen = _chosen(useful[:drawn], 2)
    assert indices(found) == [order[group] for group in chosen]
    expected = [everything.rollouts[4 * group + number].completion_ids for group in chosen for number in range(4)]
    assert [rollout.completion_ids for rollout in found.rollouts] == expected
    assert logged["prompts/drawn"] == drawn
    assert found.rewards.tolist() == [everything.rewards[4 * g + n].item() for g in chosen for n in range(4)]
    assert logged["seconds/rollout"] > 0 and logged["seconds/scoring"] > 0


# Against the passes, for any order of arrival


class Scripted:
    """Groups whose rewards are known, as an engine sees them; they end in a random order."""

    def __init__(self, teaches, wanted, most, rng, waits=False):
        self.teaches, self.rng, self.waits = teaches, rng, waits
        self.metrics = Metrics()
        self.first = self.rollout_of(range(wanted))
        further = (self.rollout_of([number]) for number in range(wanted, min(len(teaches), wanted + most)))
        self.refilling = Refilling(self.first, further, lambda each: each.prompt_ids, lambda each: None, self.score)

    def rollout_of(self, numbers):
        return Experience([{"prompt_ids": [n], "index": n} for n in numbers], 2, metrics=self.metrics)

    def score(self, experience):
        def fill_in():
            experience.rewards = torch.tensor(
                [float(own and self.teaches[n]) for n in indices(experience) for own in (0, 1)]
            )
            experience.signals = experience.rewards[:, None]
            experience.completions = [""] * len(experience.rollouts)

        return Pending(self.waits, fill_in)

    def draw(self):
        """Ends one completion after the other, as an engine whose rows end in a random order."""
        running = list(range(2 * len(self.first.prompts)))
        asked = 2 * len(self.first.prompts)
        while running:
            number = running.pop(self.rng.randrange(len(running)))
            self.refilling.finished(number, Rollout([number], [0.0], "stop"))
            for _ in self.refilling.further(waits=not running):
                running += [asked, asked + 1]
                asked += 2
        self.refilling.fill_in(self.first)
        return self.first

    def by_passes(self, wanted, most):
        first = self.rollout_of(range(wanted))
        self.score_all(first)
        return lambda accelerator: DynamicSampling(most, accelerator).fill(
            first,
            wanted,
            iter(range(wanted, len(self.teaches))),
            lambda numbers, _: self.score_all(self.rollout_of(numbers)),
        )

    def score_all(self, experience):
        experience.rollouts = [Rollout([0], [0.0], "stop") for _ in range(2 * len(experience.prompts))]
        self.score(experience).result()
        return experience


@pytest.mark.parametrize("waits", [False, True])
def test_prompts_and_groups_are_those_of_passes_whoever_ends_first(make, waits):
    accelerator = make().accelerator
    for seed in range(200):
        rng = random.Random(seed)
        wanted, most = rng.randint(1, 5), rng.randint(1, 12)
        teaches = [rng.random() < 0.4 for _ in range(rng.randint(wanted, 20))]
        scripted = Scripted(teaches, wanted, most, rng, waits)
        drawn = scripted.draw()
        refilled = DynamicSampling(most, accelerator).fill(drawn, wanted, iter(()), None)
        by_passes = scripted.by_passes(wanted, most)(accelerator)
        assert indices(refilled) == indices(by_passes)
        counts = scripted.metrics._records.moments["prompts/drawn"]
        assert counts.total == 2 * len(drawn.prompts)  # both drew equally many
        assert indices(drawn) == list(range(len(drawn.prompts)))


def test_async_rewards_are_awaited_after_so_many_looks_and_not_before():
    scripted = Scripted([False, False, True], 2, 1, random.Random(0), waits=True)
    refilling = scripted.refilling
    for number in range(4):
        refilling.finished(number, Rollout([number], [0.0], "stop"))
    looks = 1
    while not (asked := refilling.further(waits=False)):
        looks += 1
    assert looks == LOOKS and asked == [[2]]


# Whole runs

RUN = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "steps_per_generation": 1, "prompt_memory": True}


@pytest.mark.parametrize("reward", [half, long_or_not])
def test_a_run_repeats_and_resumes_to_the_last_bit(make, reward):
    first, second = (make(reward, folder=name, **RUN) for name in ("a", "b"))
    first.train()
    second.train()
    third = make(reward, folder="a", **RUN)
    third.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-2")
    assert torch.equal(weights_of(first), weights_of(second)) and torch.equal(weights_of(first), weights_of(third))
    assert first.prompt_memory._counts == third.prompt_memory._counts != {}
    records = [record for record in first.state.log_history if "loss" in record]
    assert sum(record["prompts/without_variance"] for record in records) > 0


def test_async_rewards_give_the_same_run_and_overlap(make):
    running = [0, 0]

    async def judged(prompts, completion_ids, **_):
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.02)
        running[0] -= 1
        return half(prompts, completion_ids)

    plain, awaited = make(half, folder="a"), make(judged, folder="b")
    plain.train()
    awaited.train()
    assert indices(collect(plain, [3, 4])) == indices(collect(awaited, [3, 4]))
    assert running[1] > 1  # judges of several groups at a time


def test_rewards_are_computed_as_outside_of_the_engine(make):
    seen = []

    def modes(prompts, completion_ids, **_):
        seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return half(prompts, completion_ids)

    trainer = make(modes)
    experience = collect(trainer, [0, 1])
    assert set(seen) == {(False, True)} and len(seen) >= 2
    assert not experience.rewards.is_inference()


def test_a_trainer_with_a_score_of_its_own_keeps_the_passes(make):
    trainer, batches = make(), []
    original = type(trainer).score

    class Scoring(type(trainer)):
        def score(self, experience):
            batches.append(len(experience.prompts))
            original(self, experience)

    trainer.__class__ = Scoring
    collect(trainer, [0, 1])
    assert batches[0] == 2 and sum(batches) > 2


def test_the_time_of_rewards_is_not_that_of_rollouts(make):
    def slow(prompts, completion_ids, **_):
        time.sleep(0.2)
        return half(prompts, completion_ids)

    trainer = make(slow)
    collect(trainer, [0, 1])
    logged = trainer.metrics.flush(trainer.accelerator, 1)
    assert logged["seconds/scoring"] >= 0.4
    assert 0 <= logged["seconds/rollout"] < logged["seconds/scoring"]


# Episodes


class SomeTeach(Game):
    """Rewards that can differ in every second row."""

    def reward(self, turn):
        return super().reward(turn) if self.number % 2 else 0.5


def without_passes(trainer):
    """Lets a pass of its own fail, so that everything comes from refilling."""

    def never(numbers, draw):
        assert not numbers

    trainer._draw = never
    return trainer


def test_episodes_are_refilled_and_repeat(tmp_path):
    settings = {"environment_factory": SomeTeach, "dynamic_sampling": True, "beta": 0.0, "max_steps": 3}
    runs = [without_passes(agent_trainer(tmp_path / name, GRPOConfig, **settings)) for name in "ab"]
    for run in runs:
        run.train()
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))
    records = [record for record in runs[0].state.log_history if "loss" in record]
    assert all(record["prompts/drawn"] > 2 for record in records if record["prompts/without_variance"] > 0)
    assert any(record["prompts/drawn"] > 2 for record in records)
    experience = collect(runs[0], [0, 2])  # rows that do not teach
    assert all(index % 2 for index in indices(experience))
    assert all(
        episode.prompt["index"] == index
        for index, episode in zip(
            [index for index in indices(experience) for _ in range(4)], experience.episodes, strict=True
        )
    )
    assert all(episode.environment is None for episode in experience.episodes)  # given back, for the next ones


def test_rewards_that_may_depend_on_other_episodes_are_compared_by_passes(tmp_path):
    settings = {"environment_factory": SometimesRewarding, "dynamic_sampling": True, "beta": 0.0}
    trainer = agent_trainer(tmp_path, GRPOConfig, rewards=share_of_a, **settings)
    assert not trainer._rollouts.can_refill
    trainer.agent.expect_all_rewards()
    assert trainer._rollouts.can_refill


# Servers and processes


@pytest.fixture
def double(tmp_path):
    (tmp_path / "served").mkdir()
    model = make_policy(seed=9)
    write_weights(exported_weights(model), exported_config(model), tmp_path / "served")
    double = SGLangDouble(tmp_path / "served")
    yield double
    double.stop()


@pytest.mark.parametrize("faults", [(), (takes(0.0), aborts(1), aborts(2))])
def test_servers_refill_too(make, double, faults):
    double.next("/generate", *faults)
    served = {"rollout_engine": "sglang", "sglang_base_url": [double.url], "server_timeout": 60}
    trainer = without_passes(make(**served))
    numbers = [number for number in range(24) if ord(trainer.train_dataset[number]["prompt"][0]) % 2][:2]
    experience = collect(trainer, numbers)
    order = numbers + reserve_numbers(24, numbers, (trainer.args.seed, 0), 0, 1)
    expected = [n for n in order if ord(trainer.train_dataset[n]["prompt"][0]) % 2 == 0]
    logged = trainer.metrics.flush(trainer.accelerator, 1)
    assert logged["prompts/filled"] == 0 and logged["frac_reward_zero_std"] == 0
    assert set(indices(experience)) <= set(expected)
    assert order[int(logged["prompts/drawn"]) - 1] == indices(experience)[-1]  # no prompt was drawn for nothing
    trainer.end()


def test_processes_that_draw_unequally_many_prompts_end_together(tmp_path):
    launch_forked("dynamic_sampling_worker", tmp_path, "torch", processes=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["statuses"] == [0, 0] and report["difference"] == 0.0
    first, second = report["processes"]
    assert first["drawn"] == second["drawn"] > 2  # the mean of both: the second draws until its prompts are used up
    assert first["passes"] == second["passes"] == []
    assert first["memory"] == second["memory"] != {}
