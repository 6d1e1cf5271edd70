# SPDX-License-Identifier: Apache-2.0
"""Episodes for people to read: debug output, the table and the files of completions, trackers, notes of rewards."""

import json
import sys
from types import SimpleNamespace

import datasets
import pytest
from agent_runs import ENDS, TOKENIZER, Counter, Game, agent_policy, agent_trainer
from tiny import share_of_a

from minimind_hf.trainer.logs.trackers import Trackers

CALL = [{"type": "function", "function": {"name": "add", "arguments": {"number": 2}}}]


@pytest.fixture
def make(tmp_path):
    def build(environment=Counter, rewards=share_of_a, **settings):
        return agent_trainer(
            tmp_path,
            model=agent_policy(ends=None),
            rewards=rewards,
            engine="scripted",
            environment_factory=environment,
            max_steps=1,
            **settings,
        )

    return build


def test_debug_output_shows_turns_and_answers_with_what_environments_added(make, capsys):
    make(debug_mode=True).train()
    shown = capsys.readouterr().out
    assert shown.count("prompt 0") == shown.count("prompt 1") == 1
    assert shown.count(" You are at ") == 2  # once a group: all its episodes have the same prompt
    assert "turn 1: " in shown and "turn 2: " in shown and "tokens, not trained on" in shown
    assert "<tool_call>" in shown and "<tool_response>" in shown and "Now at " in shown
    assert shown.count("completion 3: ") == 2 and shown.count("\nreward ") == 8


class Different(Counter):
    made = 0

    def reset(self, number, **row):
        super().reset(number)
        Different.made += 1
        return f" Take {Different.made % 2}."


def test_debug_output_shows_each_prompt_of_a_group(make, capsys):
    make(Different, debug_mode=True, tool_workers=1).train()
    shown = capsys.readouterr().out
    assert shown.count(" Take 0.") == shown.count(" Take 1.") == 4


def test_rewards_of_turns_are_in_the_debug_output(make, capsys):
    make(Game, rewards=None, debug_mode=True).train()
    shown = capsys.readouterr().out
    assert "tokens, reward 0" in shown and "Go on." in shown


def test_files_and_table_hold_messages_with_calls_and_answers(make, capsys, tmp_path):
    make(log_completions=True, max_completion_length=400).train()
    (path,) = (tmp_path / "completions").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 8
    assert all("You are at " in row["prompt"][-1]["content"] for row in rows)
    called = next(row["completion"] for row in rows if row["completion"][0].get("tool_calls"))
    assert called[0]["tool_calls"][0]["function"]["name"] == "add"
    assert called[1]["role"] == "tool" and called[1]["content"].startswith("Now at ")
    table = capsys.readouterr().out
    assert "TOOL" in table and "ASSISTANT" in table and "add(" in table


def test_trackers_get_calls_and_answers_as_text(monkeypatch):
    logged = []
    wandb = SimpleNamespace(
        run=SimpleNamespace(id="1"), Table=lambda columns, data: (columns, data), log=logged.append
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    args = SimpleNamespace(report_to=["wandb"], output_dir=".", run_name=None)
    completion = [
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": CALL},
        {"role": "tool", "name": "add", "content": "2"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": '{"number": 3}'}]},
        {"role": "tool", "content": [{"type": "text", "text": "5"}]},
        {"role": "assistant", "content": None, "tool_calls": None},
    ]
    Trackers(args, [], True).log_completions([{"completion": completion, "signals": {}}], step=1)
    columns, rows = logged[0]["completions"]
    assert dict(zip(columns, rows[0], strict=True))["completion"] == (
        '<think>Hm.</think>\nLet me see.\nadd({"number": 2})\n'
        'tool add: 2\nassistant: add({"number": 3})\ntool: [{"type": "text", "text": "5"}]\nassistant: '
    ).replace("<think>", "assistant: <think>", 1)


def test_prompts_with_calls_from_arrow_are_shown(make, capsys):
    """Arrow fills in every key of every message: most have `tool_calls: None`."""
    history = [
        {"role": "user", "content": "Add 2."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": {"number": 2}}}],
        },
        {"role": "tool", "content": "2"},
        {"role": "user", "content": "And now?"},
    ]
    rows = datasets.Dataset.from_list([{"prompt": history, "number": n} for n in range(8)])
    make(rows=rows, log_completions=True, debug_mode=True).train()
    shown = capsys.readouterr().out
    assert '{"name": "add", "arguments": {"number": 2}}' in shown
    assert "add(number=2)" in shown


def test_notes_of_reward_functions_stand_beside_episodes(make, tmp_path):
    def judge(completions, log_extra, log_metric, num_turns, **_):
        log_extra("last", [messages[-1]["role"] for messages in completions])
        log_metric("turns_seen", sum(num_turns))
        return [float(turns) for turns in num_turns]

    trainer = make(rewards=judge, log_completions=True)
    trainer.train()
    (path,) = (tmp_path / "completions").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert {row["last"] for row in rows} <= {"assistant", "tool"}
    (record,) = [each for each in trainer.state.log_history if "loss" in each]
    assert record["turns_seen"] == pytest.approx(8 * record["episodes/turns"])


def test_groups_without_differences_are_counted(make):
    trainer = make(rewards=lambda completions, number, **_: [float(each) for each in number], environment=Game)
    trainer.train()
    without = [each["frac_reward_zero_std"] for each in trainer.state.log_history if "loss" in each]
    assert len(without) == 1 and 0 <= without[0] < 1  # turns differ in their rewards
    same = make(rewards=lambda completions, **_: [1.0] * len(completions), environment=Silent)
    same.train()
    assert [each["frac_reward_zero_std"] for each in same.state.log_history if "loss" in each] == [1.0]


class Silent(Game):
    def reward(self, turn):
        return None


def test_debug_output_of_a_rollout_func_shows_its_prompts(tmp_path, capsys):
    from minimind_hf import GRPOConfig, GRPOTrainer

    def rolls_out(prompts, trainer):
        own = [TOKENIZER.encode(f"Rewritten {number}: ") for number in range(len(prompts))]
        ids = [[5, 6, 7, ENDS[0]]] * len(prompts)
        return {"prompt_ids": own, "completion_ids": ids, "logprobs": [[-1.0] * 4] * len(prompts)}

    settings = {"max_completion_length": 8, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 1}
    quiet = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    args = GRPOConfig(output_dir=str(tmp_path), **settings, **quiet, debug_mode=True, max_sampling_k3=None)
    rows = [{"prompt": [{"role": "user", "content": "Go."}]}] * 8
    GRPOTrainer(agent_policy(), share_of_a, args, rows, processing_class=TOKENIZER, rollout_func=rolls_out).train()
    shown = capsys.readouterr().out
    assert all(f"Rewritten {number}: " in shown for number in range(8)) and "Go." not in shown
