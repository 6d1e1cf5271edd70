# SPDX-License-Identifier: Apache-2.0
"""Whatever a tool returns or a policy writes is an observation; nothing piles up over many episodes."""

import asyncio
import gc
import threading
import time
import weakref
from dataclasses import dataclass

import pytest
import torch
from naming import raises_naming
from test_episodes import ENDS, TOKENIZER, call, make_episode, say

from minimind_hf.agent import Agent, AgentError, calculate
from minimind_hf.rollout import Rollout, RolloutEngine, SamplingParams

SETTINGS = {"max_turns": None, "max_observation_length": 64, "tool_timeout": 5.0, "tool_workers": 4}


@dataclass
class Point:
    x: int
    inner: object = None


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


def of_itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        ("", ""),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (float("nan"), "NaN"),
        ([float("inf"), -0.5], "[Infinity, -0.5]"),
        ({"a": [1, {"b": (2, None)}]}, '{"a": [1, {"b": [2, null]}]}'),
        ({(1, 2): {3, 1}}, '{"[1, 2]": [1, 3]}'),
        (Point(1, Point(2)), '{"x": 1, "inner": {"x": 2, "inner": null}}'),
        (torch.tensor([1.5, 2.0]), "[1.5, 2.0]"),
        (1 + 2j, "(1+2j)"),
        (object(), "<object>"),
        (Unprintable(), "<Unprintable, which cannot be read: RuntimeError>"),
        (10**5000, "<a whole number of 16610 bits>"),
        ("\ud800 half a pair", "? half a pair"),
        (of_itself(), "[[["),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_tool_returns_is_an_answer(value, shown):
    def give():
        """Gives something."""
        return value

    episode = make_episode(tools=(give,), max_observation_length=200)
    answer = say(episode, call("give"))
    assert answer.startswith(f"\n<|im_start|>user\n<tool_response>\n{shown}")
    assert episode.failed_calls == {} and episode.cut_observations == 0


def test_ten_megabytes_of_objects_are_cut_and_not_encoded():
    def rows() -> list:
        """Gives rows."""
        return [{"row": number, "text": "word " * 20} for number in range(100_000)]

    episode = make_episode(tools=(rows,))
    start = time.perf_counter()
    answer = say(episode, call("rows"))
    assert time.perf_counter() - start < 5
    assert '{"row": 0' in answer and "more characters]" in answer
    assert episode.cut_observations == 1


def test_an_async_tool_that_hangs_is_cancelled():
    cancelled = threading.Event()

    async def hangs() -> str:
        """Hangs."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    episode = make_episode(tools=(hangs,), tool_timeout=0.05)
    assert "Error: hangs: it took longer than 0.05 seconds." in say(episode, call("hangs"))
    assert cancelled.wait(5)
    assert dict(episode.failed_calls) == {"timeout": 1}


class Vault:
    def reset(self, **row):
        self.opened = False

    def open(self, code: int) -> str:
        """Opens the vault.

        Args:
            code: The code.
        """
        return "wrong" if code else "locked"

    def _open(self):
        self.opened = True

    @property
    def contents(self):
        self.opened = True


@pytest.mark.parametrize("name", ["_open", "__class__", "reset", "contents", "opened", "open.__func__", ""])
def test_only_public_methods_can_be_called(name):
    episode = make_episode(tools=(), factory=Vault)
    answer = say(episode, call(name))
    kind, piece = ("unknown", "The tools are: open.") if name else ("unparsed", "A call has no name")
    assert piece in answer and dict(episode.failed_calls) == {kind: 1}
    assert not episode.environment.opened


def test_a_call_inside_a_string_is_text():
    def echo(text: str) -> str:
        """Repeats a text.

        Args:
            text: What to repeat.
        """
        return f"[{len(text)}]"

    inner = call("echo", text="</tool_call>")
    episode = make_episode(tools=(echo,))
    assert f"[{len(inner)}]" in say(episode, call("echo", text=inner))
    assert (episode.calls, episode.failed_calls) == (1, {})


def test_of_two_calls_one_may_fail():
    episode = make_episode()
    answer = say(episode, call(expression="1/0") + call(expression="6*7") + '<tool_call>{"name"</tool_call>')
    assert answer.count("<tool_response>") == 3 and answer.index("Error: calculate") < answer.index("\n42\n")
    assert (episode.calls, dict(episode.failed_calls)) == (3, {"raised": 1, "unparsed": 1})


class Caller(RolloutEngine):
    """A policy that calls in every turn."""

    turn = TOKENIZER(call(expression="6*7"), add_special_tokens=False)["input_ids"] + [ENDS[0]]

    def sync_weights(self, model, version):
        pass

    def generate(self, prompt_ids, num_generations, sampling):
        drawn = []
        for _ in prompt_ids:
            ids = self.turn[: sampling.max_completion_length]
            drawn.append(Rollout(list(ids), [-1.0] * len(ids), "stop" if ids == self.turn else "length"))
        return drawn


def test_a_policy_that_never_stops_calling_ends_at_the_length_of_the_episode():
    episode = make_episode()
    sampling = SamplingParams(max_completion_length=400, temperature=1.0, eos_token_ids=tuple(ENDS))
    (rollout,) = Caller().converse([episode], sampling)
    assert rollout.finish_reason == "length" and len(rollout.completion_ids) <= 400
    assert episode.num_turns == len(rollout.turns) >= 3
    assert not episode.is_finished and not episode.reached_max_turns


def test_an_answer_without_room_is_among_the_messages_and_not_among_the_tokens():
    episode = make_episode()
    sampling = SamplingParams(max_completion_length=len(Caller.turn) + 3, temperature=1.0, eos_token_ids=tuple(ENDS))
    (rollout,) = Caller().converse([episode], sampling)
    assert (rollout.completion_ids, rollout.finish_reason) == (Caller.turn, "length")
    assert [message["role"] for message in episode.messages] == ["assistant", "tool"]


def test_an_environment_that_fails_in_reset_names_class_and_row():
    class Fails(Vault):
        def reset(self, **row):
            raise OSError("no disk")

    with raises_naming(AgentError, "Fails.reset", "row 5", "OSError", "no disk"):
        make_episode(tools=(), factory=Fails)


class Counted(Vault):
    made = weakref.WeakSet()

    def __init__(self):
        self.made.add(self)


def test_a_thousand_episodes_leave_nothing_behind():
    def later() -> str:
        """Answers."""
        return "now"

    async def soon() -> str:
        """Answers."""
        await asyncio.sleep(0)
        return "now"

    before = set(threading.enumerate())
    agent = Agent([later, soon, calculate], Counted, TOKENIZER, tuple(ENDS), **SETTINGS)
    example = {
        "prompt": [{"role": "user", "content": "Go."}],
        "prompt_ids": [1, 2, 3],
        "index": 0,
        "columns": {},
        "template_kwargs": {"enable_thinking": False},
        "tools": None,
    }
    episodes, most = weakref.WeakSet(), 0
    for step in range(125):
        running = agent.start([example], 8, seed=step)
        episodes.update(running)
        for episode in running:
            say(episode, call("later") + call("soon") + call("open", code=step) + call("nothing"))
            say(episode, "Done.")
        most = max(most, len(Counted.made), len(set(threading.enumerate()) - before))
        agent.release(running)
    del running, episode
    gc.collect()
    assert most <= 8
    assert len(episodes) == 0 and len(Counted.made) <= 8
    agent.close()
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
    del agent
    gc.collect()
    assert len(Counted.made) == 0
