# SPDX-License-Identifier: Apache-2.0
"""The tools of MiniMind's agent stage answer or say what they lack; its reward, with numbers by hand."""

import pytest
from minimind_tools import (
    TOOLBOX,
    JudgeWithoutCalls,
    agent_reward,
    calculate_math,
    contains,
    get_current_time,
    get_current_weather,
    get_exchange_rate,
    score,
    translate_text,
    unbalanced_tags,
    unit_converter,
)
from naming import raises_naming

from minimind_hf.agent import read_turn
from minimind_hf.rewards import RewardModel


def call(expression: str, name: str = "calculate_math", **more) -> dict:
    arguments = {"expression": expression, **more}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def told(content: str) -> dict:
    return {"role": "tool", "name": "calculate_math", "content": content}


def answer(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


ONE = [call("3*4"), told('{"result": "12"}')]


def test_the_six_tools_have_minimind_names():
    assert list(TOOLBOX) == [
        "calculate_math",
        "unit_converter",
        "get_current_weather",
        "get_current_time",
        "get_exchange_rate",
        "translate_text",
    ]


def test_what_the_tools_answer():
    assert calculate_math("2^10 +（3*4）") == {"result": "1036"}
    assert unit_converter(10, "km", "miles") == {"result": 6.2137}
    assert unit_converter(6.21371, "Miles", "km") == {"result": 10.0}
    assert unit_converter(100, "celsius", "fahrenheit") == {"result": 212.0}
    assert unit_converter(212, "fahrenheit", "celsius") == {"result": 100.0}
    assert get_current_weather("北京") == {"location": "北京", "temperature": "27°C", "condition": "晴"}
    assert get_current_time() == {"timezone": "Asia/Shanghai", "datetime": "2026-01-15 20:00:00"}
    assert get_exchange_rate("usd", "CNY") == {"rate": 7.1}
    assert get_exchange_rate("CNY", "JPY") == {"rate": 20.0}
    assert translate_text("你好", "English") == {"translated_text": "Hello"}


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        (get_current_weather, ["Atlantis"], ["'Atlantis'", "北京"]),
        (get_current_time, ["Mars/Olympus"], ["'Mars/Olympus'", "Asia/Shanghai"]),
        (get_exchange_rate, ["USD", "XXX"], ["USD", "XXX", "USD/CNY"]),
        (translate_text, ["你好", "klingon"], ["'klingon'", "english"]),
        (unit_converter, [1.0, "km", "kg"], ["km", "kg", "km/miles"]),
        (calculate_math, ["__import__('os')"], ["__import__"]),
    ],
)
def test_what_the_tools_do_not_know_is_an_error_that_says_so(tool, arguments, named):
    with raises_naming(ValueError, *named):
        tool(*arguments)


@pytest.mark.parametrize(
    ("messages", "gt", "expected"),
    [
        # one valid call for one value, found in the answer: 0.5 + 2.5
        ([*ONE, answer("It is 12.")], ["12"], 3.0),
        # as a number in another spelling: 1,200.0 is 1200
        ([*ONE, answer("It is 1,200.0.")], ["1200"], 3.0),
        # one call for two values, one of them found: -0.5 + 2.5 / 2
        ([*ONE, answer("It is 12.")], ["12", "30"], 0.75),
        # two calls for one value: -0.5 + 2.5
        ([*ONE, *ONE, answer("It is 12.")], ["12"], 2.0),
        # an unknown tool: one valid call too few and one that is not valid: -1.0 + 2.5
        ([call("3*4", name="search"), told("Error"), answer("It is 12.")], ["12"], 1.5),
        # bad arguments beside a right call: -0.5 for the one that is not valid, + 2.5
        ([call("3*4", base=10), told("Error"), *ONE, answer("It is 12.")], ["12"], 2.0),
        # ends with a call: -0.5 (two calls for one value) - 0.5 (unfinished)
        ([*ONE, call("3*4")], ["12"], -1.0),
        # ends with the call, of which nothing is answered: 0.5 - 0.5
        ([call("3*4")], ["12"], 0.0),
        # calls where none is expected: -0.5
        ([*ONE, answer("It is 12.")], [], -0.5),
        # the value is not there: 0.5
        ([*ONE, answer("It is 13.")], ["12"], 0.5),
        # a tag without its partner, in a turn that holds a call, too: 0.5 + 2.5 - 0.5
        ([{**ONE[0], "content": "<tool_call>"}, ONE[1], answer("It is 12.")], ["12"], 2.5),
        # nine tokens are seven groups of three, four of which are repeated: more than half costs 0.5
        ([*ONE, answer("12 is it 12 is it 12 is it")], ["12"], 2.5),
        # seven calls too many: -3.5 + 2.5
        ([*ONE * 8, answer("It is 12.")], ["12"], -1.0),
        # nine too many and the answer missing: -4.5, limited
        ([*ONE * 10, answer("It is 13.")], ["12"], -3.0),
    ],
)
def test_reward_of_an_episode_with_calls(messages, gt, expected):
    assert score(messages, gt) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([answer("Hello there.")], 0.5),  # its length
        ([answer("Hi.")], -0.5),  # too short
        # length 0.5, a thought of 20 to 300 characters 1.0, closed once 0.25
        ([answer("Hello there.", reasoning_content="The user says hello, so I do.")], 1.75),
        # length 0.5, a thought too short -0.5, closed once 0.25
        ([answer("Hello there.", reasoning_content="Hm.")], 0.25),
        # length 0.5, one tag too many -0.5
        ([answer("<tool_call>{3*4}")], 0.0),
        # a call that cannot be read is none: 0.5, and its tags are in balance
        ([read_turn("<tool_call>{3*4}</tool_call>", False).message, told("Error"), answer("Hello there.")], 0.5),
        # eight tokens are six groups of three, three of them repeated: 0.5 - 0.5
        ([answer("so it is so it is so it")], 0.0),
    ],
)
def test_reward_of_an_episode_without_calls(messages, expected):
    assert score(messages, None) == pytest.approx(expected)


def test_rewards_of_a_batch():
    assert agent_reward([[*ONE, answer("It is 12.")], [answer("Hi.")]], [["12"], None], prompts=[]) == [3.0, -0.5]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("about 3.50 dollars", 3.5, True),
        ("about 13.5 dollars", "3.5", True),  # as text, MiniMind's rule too
        ("about 13 dollars", "3.5", False),
        ("The weather is SUNNY", "sunny", True),
        ("-4 degrees", -4.0, True),
        ("v4", "4.0", False),
        ("anything", "", False),
        ("anything", "  ", False),
        ("1,234,567", "1234567", True),
    ],
)
def test_values_are_found_as_text_or_as_numbers(text, value, expected):
    assert contains(text, value) is expected


def test_tags_are_counted_by_turn():
    assert unbalanced_tags([answer("<tool_call>"), answer("</tool_call>")]) == 2
    assert unbalanced_tags([answer("<tool_call></tool_call>"), told("<tool_call>")]) == 0


def test_a_reward_model_judges_episodes_without_calls_and_the_sum_is_limited(monkeypatch):
    seen = []

    def judged(self, prompts, completions):
        seen.extend(prompts)
        return [2.5] * len(prompts)

    monkeypatch.setattr(RewardModel, "__call__", judged)
    judge = JudgeWithoutCalls.__new__(JudgeWithoutCalls)
    thoughtful = [answer("Hello there.", reasoning_content="The user says hello, so I do.")]
    rewards = judge(["a", "b", "c"], [[*ONE, answer("12")], [answer("Hi.")], thoughtful])
    assert seen == ["b", "c"]
    assert rewards == [0.0, 2.5, 1.25]  # 1.75 + 2.5 is limited to 3
