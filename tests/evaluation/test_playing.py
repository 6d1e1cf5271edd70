# SPDX-License-Identifier: Apache-2.0
"""Evaluation in episodes: tools, environments, what is counted, and what the command refuses."""

import json

import pytest
import torch
from chat_tokenizers import chat_tokenizer
from naming import assert_names
from tiny import make_policy, make_tokenizer

from minimind_hf.cli import main
from minimind_hf.rollout import TorchEngine
from minimind_hf.rollout.transcript import Transcript

TOKENIZER, ENDS = chat_tokenizer("qwen3")
CODE = '''
from minimind_hf import Conversation, Reply


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: A number.
        b: A number.
    """
    return a + b


def undescribed(a):
    return a


class Counter:
    def reset(self, target=3, **row):
        self.target, self.count = target, 0
        return f" Count to {target}."

    def count_up(self) -> str:
        """Counts."""
        self.count += 1
        return str(self.count)

    def get_reward(self):
        return float(self.count == self.target)


class Silent:
    def reset(self, **row):
        pass


class Guess(Conversation):
    """Every turn costs, and the third is the last."""

    def reset(self, seed, **row):
        self.turns = 0
        return f"Seed {seed}."

    def respond(self, turn):
        self.turns += 1
        return Reply("No.", reward=-0.25) if self.turns < 3 else Reply(reward=1.5, done=True)


class Sometimes(Conversation):
    def reset(self, answer):
        self.answer = answer

    def respond(self, turn):
        return Reply(reward=None if self.answer == "1" else 0.5, done=True)


TOOLS = [add]
NOT_A_FUNCTION = 3
'''


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Scripted(TorchEngine):
    """Says the turns of a script in each episode, whatever the model."""

    script: list[list[str]] = []

    def converse(self, sessions, sampling):
        return [self._played(*pair, sampling) for pair in zip(sessions, self.script, strict=True)]

    def _played(self, session, turns, sampling):
        transcript = Transcript(sampling)
        for text in turns:
            ids = [*TOKENIZER(text, add_special_tokens=False)["input_ids"], ENDS[0]]
            transcript.add_turn(ids, [-1.0] * len(ids), "stop")
            goes_on = transcript.answer(session.observe(ids, "stop"))
            assert goes_on == (text is not turns[-1])
        return transcript.rollout(0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    endings = [*range(9, len(TOKENIZER), 10), *ENDS]  # a random policy ends a turn about every tenth token
    for seed in (0, 1):
        model = make_policy(seed, vocab_size=len(TOKENIZER))
        model.generation_config.eos_token_id = endings
        model.save_pretrained(tmp_path / f"model_{seed}")
        TOKENIZER.save_pretrained(tmp_path / f"model_{seed}")
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}], "answer": str(n + 1)} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def arguments_of(folder, *flags: str, models=1) -> list[str]:
    named = [str(folder / f"model_{seed}") for seed in range(models)]
    lengths = ["--max_completion_length", "600", "--max_turn_length", "120"]
    return ["eval", *named, "--device", "cpu", "--thinking_ratio", "0", *lengths, *flags]


def evaluate(folder, capsys, *flags: str, models=1) -> dict:
    assert main(arguments_of(folder, *flags, models=models)) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def values(result: dict, model="model_0") -> dict[str, float]:
    return {row["signal"]: (row["models"][model] or {}).get("mean") for row in result["results"]}


def data(folder) -> list[str]:
    return ["--dataset_name", str(folder / "rows.jsonl")]


def test_tools_are_called_and_counted(folder, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", Scripted)
    Scripted.script = [
        [call("add", a=0, b=1), "1"],  # solved
        ["7"],  # no call
        [call("add", a="x", b=1), call("add", a=1, b=1), "2"],  # a failed call, solved
        [call("nothing") + call("add", a=1, b=1), "3"],  # one of two calls fails
    ]
    flags = ["--tools", f"{folder / 'code.py'}:add", "--exact_match", "--samples", "2", "--pass_at", "1", "2"]
    result = evaluate(folder, capsys, *data(folder), *flags, "--output", str(folder / "out"))
    found = values(result)
    assert found["reward"] == found["rewards/exact_match"] == found["pass@1"] == 0.5
    assert found["pass@2"] == 1.0
    assert found["episodes/turns"] == (2 + 1 + 3 + 2) / 4
    assert found["tools/call_frequency"] == (1 + 0 + 2 + 2) / 4
    assert found["tools/failure_frequency"] == (0 / 1 + 2 / 4) / 2  # by prompt: none of 1, 2 of 4
    assert found["episodes/reached_max_turns"] == found["truncated"] == 0.0
    assert result["tools"] == flags[1:2] and result["environment"] is None
    lines = (folder / "out" / "completions_model_0.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [message["role"] for message in rows[0]["completion"]] == ["assistant", "tool", "assistant"]
    assert rows[0]["completion"][1] == {"role": "tool", "name": "add", "content": "1"}
    assert [row["reward"] for row in rows] == [1.0, 0.0, 1.0, 0.0]
    assert [row["failed_calls"] for row in rows] == [{}, {}, {"arguments": 1}, {"unknown": 1}]
    own = [*TOKENIZER(call("add", a=0, b=1) + "1", add_special_tokens=False)["input_ids"]]
    assert rows[0]["tokens"] == len(own) + 2  # with the two EOS, without the answer


def test_an_episode_stopped_at_max_turns(folder, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", Scripted)
    Scripted.script = [[call("add", a=1, b=1), call("add", a=2, b=2)], ["1"]]
    flags = ["--tools", f"{folder / 'code.py'}:TOOLS", "--exact_match", "--max_turns", "2"]
    found = values(evaluate(folder, capsys, *data(folder), *flags))
    assert found["episodes/reached_max_turns"] == 0.5 and found["tools/call_frequency"] == 1.0


def test_an_environment_gives_its_reward_and_its_prompt(folder, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", Scripted)
    count = call("count_up")
    Scripted.script = [[count, count + count, "Done."], [count, "Done."]]
    flags = ["--environment", f"{folder / 'code.py'}:Counter", "--num_prompts", "2"]
    result = evaluate(folder, capsys, *flags, "--output", str(folder / "out"))
    assert values(result)["rewards/Counter"] == 0.5 and result["dataset"] is None
    row = json.loads((folder / "out" / "completions_model_0.jsonl").read_text().splitlines()[0])
    assert row["prompt"] == [{"role": "user", "content": " Count to 3."}]


def test_a_data_set_without_prompts_whose_environment_writes_them(folder, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", Scripted)
    Scripted.script = [[call("count_up"), "Done."], [call("count_up"), "Done."]]
    (folder / "targets.jsonl").write_text('{"target": 1}\n{"target": 2}\n')
    flags = ["--dataset_name", str(folder / "targets.jsonl"), "--environment", f"{folder / 'code.py'}:Counter"]
    assert values(evaluate(folder, capsys, *flags))["reward"] == 0.5


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_reply_without_reward_counts_0_whatever_is_played_with_it(folder, capsys, monkeypatch, batch_size):
    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", Scripted)
    Scripted.script = [["1"]] * batch_size  # the answer to the first row, whose replies have no reward
    flags = ["--environment", f"{folder / 'code.py'}:Sometimes", "--exact_match", "--batch_size", str(batch_size)]
    result = evaluate(folder, capsys, *data(folder), *flags)
    (row,) = [row for row in result["results"] if row["signal"] == "rewards/Sometimes"]
    assert (row["models"]["model_0"]["mean"], row["models"]["model_0"]["prompts"]) == (0.25, 2)
    assert values(result)["reward"] == (1.0 + 0.5) / 2


def test_two_random_models_play_the_same_conversations(folder, capsys):
    flags = ["--environment", f"{folder / 'code.py'}:Guess", "--samples", "2", "--num_prompts", "3"]
    result = evaluate(folder, capsys, *flags, "--output", str(folder / "out"), models=2)
    prompts = []
    for seed in (0, 1):
        lines = (folder / "out" / f"completions_model_{seed}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        prompts.append([row["prompt"] for row in rows])
        for row in rows:
            finished = row["finish_reason"] == "stop"
            assert row["turn_rewards"] == [-0.25, -0.25, 1.5][: row["turns"]] or not finished
            assert row["reward"] == pytest.approx(sum(row["turn_rewards"])) and row["calls"] == 0
        mean = sum(row["reward"] for row in rows) / 6
        assert values(result, f"model_{seed}")["reward"] == pytest.approx(mean, abs=1e-6)
    assert prompts[0] == prompts[1] and len({json.dumps(each) for each in prompts[0]}) == 3
    assert "tools/call_frequency" not in values(result)
    assert result == evaluate(folder, capsys, *flags, models=2)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--tools", "code.py:add"], ["--reward_funcs", "--environment"]),
        (["--tools", "add", "--exact_match"], ["--tools", "'add'", "file.py:name"]),
        (["--tools", "{code}:nothing", "--exact_match"], ["'nothing'"]),
        (["--tools", "{code}:undescribed", "--exact_match"], ["--tools", "'undescribed'"]),
        (["--tools", "{code}:NOT_A_FUNCTION", "--exact_match"], ["--tools", "3"]),
        (["--environment", "{code}:NOT_A_FUNCTION"], ["environment_factory", "3"]),
        (["--environment", "{code}:Silent"], ["Silent", "--reward_funcs"]),
        (["--environment", "Guess"], ["--environment", "'Guess'"]),
        (["--exact_match"], ["max_turn_length", 120, "--tools", "--environment"]),
        (["--environment", "{code}:Guess", "--num_prompts", "4"], ["num_prompts", 4, "rows.jsonl"]),
        (["--environment", "{code}:Guess", "--tool_timeout", "0"], ["tool_timeout", 0.0]),
        (["--environment", "{code}:Guess", "--max_turns", "0"], ["max_turns", 0]),
    ],
)
def test_command_refuses_before_a_model_is_loaded(folder, flags, named, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.commands.evaluating.load_for_inference", None)
    flags = [each.format(code=folder / "code.py") for each in flags]
    assert main(arguments_of(folder, *data(folder), *flags)) == 1
    assert_names(capsys.readouterr().err, *named)


def test_no_prompts_at_all(folder, capsys):
    assert main(arguments_of(folder, "--exact_match")) == 1
    assert_names(capsys.readouterr().err, "--dataset_name", "--environment")
    assert main(arguments_of(folder, "--environment", f"{folder / 'code.py'}:Guess", "--num_prompts", "0")) == 1
    assert_names(capsys.readouterr().err, "num_prompts", 0)


def test_a_template_that_knows_no_tools_is_named_before_a_model_is_loaded(folder, capsys, monkeypatch):
    monkeypatch.setattr("minimind_hf.commands.evaluating.load_for_inference", None)
    make_tokenizer().save_pretrained(folder / "model_1")
    flags = [*data(folder), "--exact_match", "--tools", f"{folder / 'code.py'}:add"]
    assert main(arguments_of(folder, *flags, models=2)) == 1
    assert_names(capsys.readouterr().err, folder / "model_1")


def test_turns_that_the_model_draws_are_those_of_one_forward(folder):
    """Nothing is scripted here: the engine plays, and its model says which turns there are."""
    from minimind_hf.agent.loading import load_environment
    from minimind_hf.evaluation import EpisodeSettings, EvalSettings, agent_for, answer_prompts
    from minimind_hf.inference import load_for_inference
    from minimind_hf.rewards import RewardScorer

    torch.manual_seed(0)
    model, tokenizer = load_for_inference(folder / "model_0", device="cpu")
    settings = EvalSettings(samples=2, max_completion_length=300, thinking_ratio=0.0)
    episodes = EpisodeSettings(max_turn_length=40)
    agent = agent_for(tokenizer, [], load_environment(f"{folder / 'code.py'}:Guess"), episodes, settings)
    scorer = RewardScorer(agent.reward_functions(are_only=True))
    answers = answer_prompts(
        "m", model, tokenizer, agent.empty_prompts(4), scorer, settings, agent=agent, episodes=episodes
    )
    turns = torch.tensor([row["turns"] for row in answers.completions], dtype=torch.float64).view(4, 2).mean(1)
    assert answers.signals["episodes/turns"] == turns.tolist() and turns.max() > 1
