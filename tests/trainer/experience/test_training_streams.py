# SPDX-License-Identifier: Apache-2.0
"""Training and evaluation on streams: the prompts of the rows, each process its own, resumed at the same row."""

import json
import logging

import datasets
import pytest
import torch
from launching import launch_forked
from naming import raises_naming
from tiny import make_policy, make_prompts, share_of_a, tiny_trainer

from minimind_hf.data import PromptError
from minimind_hf.rewards import RewardError

SHAPES = {
    "one rollout a step": {},
    "checkpoint within a rollout": {"per_device_train_batch_size": 4, "steps_per_generation": 6},
    "checkpoint between iterations": {"num_iterations": 3},
}
SAMPLED = {"scripted": False, "optim": "adamw_torch", "learning_rate": 1e-2, "max_steps": 7, "thinking_ratio": 0.5}


class TorchStream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def stream(count: int, kind=datasets.IterableDataset):
    rows = make_prompts(count)
    return TorchStream(rows) if kind is TorchStream else datasets.Dataset.from_list(rows).to_iterable_dataset()


def weights(trainer) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in trainer.model.state_dict().values()])


@pytest.mark.parametrize("kind", [datasets.IterableDataset, TorchStream])
def test_a_stream_trains_as_its_rows_do(make_trainer, kind):
    changes = {"shuffle_dataset": False, "max_steps": 5, "num_iterations": 2}
    runs = [make_trainer(prompts=prompts, **changes) for prompts in (make_prompts(12), stream(12, kind))]
    for trainer in runs:
        trainer.train()
    assert torch.equal(*map(weights, runs))
    assert runs[1].state.global_step == 5


@pytest.mark.parametrize(
    ("shape", "stop"),
    [
        ("one rollout a step", 2),
        ("one rollout a step", 5),  # in the second pass: a pass has 7 rows, a rollout 2
        ("checkpoint within a rollout", 5),
        ("checkpoint between iterations", 5),
    ],
)
def test_a_resumed_run_goes_on_at_the_same_row(make_trainer, tmp_path, shape, stop):
    chats = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in make_prompts(7)]

    def run(**changes):
        rows = datasets.Dataset.from_list(chats).to_iterable_dataset()
        return make_trainer(make_policy(), prompts=rows, save_strategy="steps", **SAMPLED | SHAPES[shape] | changes)

    straight = run(save_steps=stop)
    straight.train()
    resumed = run(save_steps=100, output_dir=str(tmp_path / "resumed"))
    resumed.train(resume_from_checkpoint=f"{straight.args.output_dir}/checkpoint-{stop}")
    assert torch.equal(weights(straight), weights(resumed))


def test_a_run_resumed_with_another_stream_says_so(make_trainer, caplog):
    saving = {"save_strategy": "steps", "save_steps": 1}
    make_trainer(prompts=stream(12), **saving, max_steps=1).train()
    other = make_trainer(prompts=TorchStream(make_prompts(12, seed=1)), **saving)
    with caplog.at_level(logging.WARNING, "minimind_hf"):
        other.train(resume_from_checkpoint=f"{other.args.output_dir}/checkpoint-1")
    assert "digest of the first prompts" in caplog.text


@pytest.mark.parametrize("count", [8, 3, 2])
def test_a_stream_that_ends_begins_again(make_trainer, count):
    seen = []

    def reward(completion_ids, number, **columns):
        seen.extend(number[::4])
        return share_of_a(completion_ids)

    trainer = make_trainer(prompts=stream(count), reward=reward, max_steps=6)
    trainer.train()
    assert trainer.state.global_step == 6
    passes = [sorted(seen[i : i + count]) for i in range(0, 12 - count + 1, count)]
    assert passes == [list(range(count))] * len(passes)


@pytest.mark.parametrize(
    ("prompts", "changes", "named"),
    [
        (stream(8), {"max_steps": -1}, ["train_dataset", "IterableDataset", "max_steps is -1"]),
        (stream(8), {"accelerator_config": {"dispatch_batches": True}}, ["dispatch_batches=True", "IterableDataset"]),
        (TorchStream([]), {}, ["TorchStream", "0 prompts", 2]),
        (stream(1), {}, ["1 prompts", 2, "per_device_train_batch_size"]),
        (TorchStream([{"text": "x"}] * 2), {}, ["'text'", "prompt"]),
        (datasets.IterableDatasetDict(train=stream(8)), {}, ["IterableDatasetDict", "dataset['train']"]),
    ],
    ids=["max_steps", "dispatch", "empty", "few", "columns", "splits"],
)
def test_what_cannot_be_trained_on_is_refused_at_once(make_trainer, prompts, changes, named):
    with raises_naming(ValueError, *named):
        make_trainer(model="/no/such/model", prompts=prompts, **changes)


def test_columns_of_a_stream_are_compared_with_the_rewards(make_trainer):
    with raises_naming(RewardError, "exact_match_reward", "'answer'"):
        make_trainer(model="/no/such/model", prompts=stream(8), reward="exact_match")


def test_the_row_of_an_error_is_named(make_trainer):
    rows = make_prompts(60)
    rows[40]["prompt"] = ""
    trainer = make_trainer(prompts=TorchStream(rows), shuffle_dataset=False, max_steps=30, learning_rate=1e-3)
    with raises_naming(PromptError, "row 40", "empty string"):
        trainer.train()
    assert trainer.state.global_step == 20


def test_a_prompt_without_room_is_named_and_the_limit_said_at_the_start(make_trainer, caplog):
    rows = make_prompts(60)
    rows[40]["prompt"] = "x" * 60
    with caplog.at_level(logging.WARNING, "minimind_hf"):
        trainer = make_trainer(
            make_policy(max_position_embeddings=64),
            prompts=TorchStream(rows),
            shuffle_dataset=False,
            max_steps=30,
            learning_rate=1e-3,
        )
    assert "max_prompt_length to at most 56" in caplog.text
    with raises_naming(ValueError, "row 40", "60 tokens", "max_prompt_length"):
        trainer.train()


def test_a_stream_is_evaluated_as_its_rows_are(make_config):
    held_out = make_prompts(5, seed=9)
    given = {
        "rows": held_out,
        "stream": datasets.Dataset.from_list(held_out).to_iterable_dataset(),
        "once": TorchStream(iter(held_out)),
        "splits": datasets.IterableDatasetDict(a=datasets.Dataset.from_list(held_out).to_iterable_dataset()),
    }
    found = {}
    for name, dataset in given.items():
        trainer = tiny_trainer(make_config(), eval_dataset=dataset)
        found[name] = [trainer.evaluate() for _ in range(2)]
    prefix = {"splits": "eval_a_"}
    rewards = {name: [f[f"{prefix.get(name, 'eval_')}reward"] for f in each] for name, each in found.items()}
    assert len({reward for each in rewards.values() for reward in each}) == 1
    assert trainer.evaluate(given["stream"])["eval_reward"] == rewards["rows"][0]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    launch_forked("stream_worker", folder, processes=1)
    return json.loads((folder / "report.json").read_text())


@pytest.mark.slow
def test_each_process_takes_its_share(two_processes):
    first, second = two_processes["straight"]
    assert len(first) == len(second) == 14  # 7 rollouts of 2 prompts each
    drawn = [row for i in range(0, 14, 2) for row in (*first[i : i + 2], *second[i : i + 2])]
    assert sorted(drawn[:20]) == list(range(20)) and len(set(drawn[20:])) == 8  # a pass, and the begin of the next
    assert drawn[:20] != list(range(20))


@pytest.mark.slow
def test_two_processes_go_on_at_the_same_row(two_processes):
    assert two_processes["statuses"][:2] == [[0, 0], [0, 0]]
    assert two_processes["resumed"] == [rows[6:] for rows in two_processes["straight"]]
    assert two_processes["difference"] == 0.0


@pytest.mark.slow
def test_both_processes_end_at_a_bad_row(two_processes):
    assert all(two_processes["statuses"][2])
    assert all("row 37" in error and "`prompt` is missing" in error for error in two_processes["errors"])
    assert any("reading the prompts" in error for error in two_processes["errors"])
