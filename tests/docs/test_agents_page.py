# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/agents.md train as they stand, and what they define plays the episodes that it tells of."""

import json
import re
import runpy

import pytest
from chat_tokenizers import chat_tokenizer
from guides import DOCS
from tiny import make_policy

from minimind_hf.agent import Agent

TEXT = (DOCS / "agents.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```python title="([\w.]+)"\n(.*?)```', TEXT, flags=re.DOTALL))
TOKENIZER, ENDS = chat_tokenizer("qwen3")


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Runs an example on a random model in whose turns every tenth token is an end, and returns its names."""

    def run(name: str) -> dict:
        model = make_policy(vocab_size=len(TOKENIZER))
        model.generation_config.eos_token_id = [*range(9, len(TOKENIZER), 10), *ENDS]
        model.save_pretrained("MODEL")
        TOKENIZER.save_pretrained("MODEL")
        (tmp_path / name).write_text(FILES[name], encoding="utf-8")
        names = runpy.run_path(name, init_globals={"MODEL": "MODEL"})
        assert names["trainer"].state.global_step == 1
        return names

    monkeypatch.chdir(tmp_path)
    return run


def begin(row: dict, tools=(), environment=None):
    """An episode with the tools or the environment of an example."""
    settings = {"max_turns": 3, "max_observation_length": 64, "tool_timeout": 5.0, "tool_workers": 2}
    agent = Agent(tools, environment, TOKENIZER, tuple(ENDS), **settings)
    example = {
        "prompt": [{"role": "user", "content": ""}],
        "prompt_ids": [1, 2, 3],
        "index": 0,
        "columns": row,
        "template_kwargs": {"enable_thinking": False},
        "tools": None,
    }
    return agent.start([example], 1, seed=0)[0]


def say(episode, text: str) -> str | None:
    answer = episode.observe(TOKENIZER(text, add_special_tokens=False)["input_ids"] + [ENDS[0]], "stop")
    return None if answer is None else TOKENIZER.decode(answer)


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_every_example_is_run_here():
    assert set(FILES) == {"weather.py", "counter.py", "guess.py", "puzzles.py"}
    assert TEXT.count("```python") == len(FILES)


def test_a_tool(example):
    names = example("weather.py")
    shown = TOKENIZER.decode(names["trainer"].train_dataset[0]["prompt_ids"])
    assert "Returns the temperature of a city in degrees Celsius." in shown
    episode = begin({}, tools=[names["temperature"]])
    assert "\n21\n" in say(episode, call("temperature", city="Paris"))
    assert say(episode, "It is 21 degrees.") is None
    assert names["correct"]([episode.messages] * 2, ["21", "9"]) == [1.0, 0.0]


def test_an_environment(example):
    names = example("counter.py")
    assert "rewards/Counter/mean" in names["trainer"].state.log_history[0]
    episode = begin({"target": 7}, environment=names["Counter"])
    assert episode.prompt["prompt"][-1]["content"].endswith("Count to 7.")
    assert "The counter is at 3." in say(episode, call("add", number=3))
    assert episode.environment.get_reward() == 0.0
    say(episode, call("add", number=4))
    assert episode.environment.get_reward() == 1.0


def test_a_conversation(example):
    names = example("guess.py")
    assert names["trainer"].state.log_history[0]["episodes/turns"] > 1
    episode = begin({"number": 8}, environment=names["Guess"])
    assert "No. Try again." in say(episode, "Is it 3?")
    assert say(episode, "Is it 8?") is None
    assert episode.turn_rewards == [-0.1, 1.0] and episode.is_finished


def test_puzzles_of_a_package_that_nobody_here_wrote(example):
    pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")
    names = example("puzzles.py")
    assert names["trainer"].state.log_history[0]["episodes/turns"] > 1
    episode = begin({}, environment=names["Countdown"])
    puzzle = episode.environment.puzzle
    assert episode.prompt["prompt"][-1]["content"].strip() == puzzle["question"].strip()
    assert "Try again." in say(episode, "I do not know.")
    assert say(episode, puzzle["answer"]) is None
    first, last = episode.turn_rewards
    assert first < 0.1 and last == 1.0 and episode.is_finished
