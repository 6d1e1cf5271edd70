# SPDX-License-Identifier: Apache-2.0
"""The six tools of MiniMind's agent stage, by its names, and the reward of that stage.

    python recipes/agent.py --config recipes/agent_minimind.yaml --model_name_or_path FOLDER --dataset_name FILE.jsonl

What the tools answer stands in minimind_tools.json and is made up. The `gt` of a row are values that the final answer
must contain, so they have to come from the same tables: put those of your data into that file. What a tool does not
know is an error that the policy reads, and so is anything that cannot be calculated.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimind_hf.agent import Toolbox, calculate
from minimind_hf.rewards import RewardModel, format_score, length_score, repetition_penalty, thinking_score

DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
MOST = 3.0  # a reward lies between minus this and this
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?![\w.]*\w)")
_SIGNS = str.maketrans({"^": "**", "（": "(", "）": ")"})

Messages = list[dict[str, Any]]


# The tools


def calculate_math(expression: str) -> dict:
    """Calculates an expression.

    Args:
        expression: Numbers with + - * / ** and parentheses.

    Returns:
        The result.
    """
    return {"result": calculate(expression.translate(_SIGNS))}


def unit_converter(value: float, from_unit: str, to_unit: str) -> dict:
    """Converts a value into another unit.

    Args:
        value: The value.
        from_unit: Its unit, for example km.
        to_unit: The wanted unit, for example miles.

    Returns:
        The result.
    """
    source, target = from_unit.lower(), to_unit.lower()
    if {source, target} == {"celsius", "fahrenheit"}:
        return {"result": round(value * 1.8 + 32 if source == "celsius" else (value - 32) / 1.8, 4)}
    return {"result": round(value * _factor("units", source, target), 4)}


def get_current_weather(location: str) -> dict:
    """Looks up the weather.

    Args:
        location: A city.

    Returns:
        Temperature and condition.
    """
    temperature, condition = _known("weather", location)
    return {"location": location, "temperature": temperature, "condition": condition}


def get_current_time(timezone: str = "Asia/Shanghai") -> dict:
    """Looks up the time.

    Args:
        timezone: For example Europe/Paris.

    Returns:
        Date and time.
    """
    return {"timezone": timezone, "datetime": _known("time", timezone)}


def get_exchange_rate(from_currency: str, to_currency: str) -> dict:
    """Looks up an exchange rate.

    Args:
        from_currency: For example USD.
        to_currency: For example CNY.

    Returns:
        The rate.
    """
    return {"rate": round(_factor("rates", from_currency.upper(), to_currency.upper()), 6)}


def translate_text(text: str, target_language: str) -> dict:
    """Translates a text.

    Args:
        text: The text.
        target_language: For example english.

    Returns:
        The translation.
    """
    languages = _known("translations", text)
    if target_language.lower() not in languages:
        raise ValueError(f"there is no translation into {target_language!r}; try {', '.join(languages)}.")
    return {"translated_text": languages[target_language.lower()]}


def _known(table: str, key: str) -> Any:
    if key not in DATA[table]:
        raise ValueError(f"nothing is known about {key!r}; try {', '.join(list(DATA[table])[:4])}.")
    return DATA[table][key]


def _factor(table: str, source: str, target: str) -> float:
    """How much of `target` one `source` is, in the direction of the table or the other."""
    if source == target:
        return 1.0
    there, back = (DATA[table].get(f"{a}/{b}") for a, b in ((source, target), (target, source)))
    if there is None and back is None:
        raise ValueError(f"{source} and {target} are not in the table; it has {', '.join(DATA[table])}.")
    return there if there is not None else 1 / back


TOOLS = [calculate_math, unit_converter, get_current_weather, get_current_time, get_exchange_rate, translate_text]
TOOLBOX = Toolbox(TOOLS)


# The reward


def agent_reward(completions: list[Messages], gt: list[Sequence | None], **columns: Any) -> list[float]:
    """MiniMind's reward of an episode, see [`agent_score`] and [`single_turn_score`]."""
    return [score(messages, values) for messages, values in zip(completions, gt, strict=True)]


def score(messages: Messages, gt: Sequence | None) -> float:
    """The rules' reward of one episode, between -3 and 3."""
    return _clamped(agent_score(messages, gt or []) if calls_of(messages) else single_turn_score(messages))


def agent_score(messages: Messages, gt: Sequence) -> float:
    """The reward of an episode with calls.

    Args:
        messages (`list[dict]`): The episode.
        gt (`Sequence`): Values that the final answer must contain; one call is expected for each of them.

    Returns:
        `float`: 0.5 if there are as many calls as values, all of them valid, else -0.5 for each valid one too many or
        too few and for each one that is not valid; 2.5 times the share of the values in the final answer; -0.5
        without a final answer; -0.5 for each unbalanced tag; minus the repetition in the final answer.
    """
    calls = calls_of(messages)
    valid = sum(TOOLBOX.check_arguments(call["name"], call["arguments"]) is None for call in calls)
    gap = abs(valid - len(gt)) + len(calls) - valid
    answer = final_answer(messages)
    reward = -0.5 * gap if gap else 0.5
    if gt:
        reward += 2.5 * sum(contains(answer or "", value) for value in gt) / len(gt)
    reward -= 0.5 * (answer is None)
    return reward - 0.5 * unbalanced_tags(messages) - repetition_penalty(answer or _said(messages))


def single_turn_score(messages: Messages) -> float:
    """The reward of an episode without calls: length, thinking, format and repetition as of single turns."""
    last = messages[-1]
    answer, thought = last.get("content") or "", last.get("reasoning_content")
    response = answer if thought is None else f"{thought}</think>{answer}"
    rules = length_score(response, min_chars=5) + thinking_score(response) + format_score(response)
    return rules - 0.5 * unbalanced_tags(messages) - repetition_penalty(answer)


def calls_of(messages: Messages) -> list[dict[str, Any]]:
    """Name and arguments of each call of an episode that could be read."""
    return [call["function"] for message in messages for call in message.get("tool_calls") or ()]


def final_answer(messages: Messages) -> str | None:
    """The text of the last turn; `None` if the episode ended with a call."""
    last = messages[-1]
    return last.get("content") or "" if last["role"] == "assistant" and not last.get("tool_calls") else None


def _said(messages: Messages) -> str:
    return next((m.get("content") or "" for m in reversed(messages) if m["role"] == "assistant"), "")


def unbalanced_tags(messages: Messages) -> int:
    """How many tags of calls lack their partner. Calls that could be read are not in the text any more."""
    texts = [message.get("content") or "" for message in messages if message["role"] == "assistant"]
    return sum(abs(text.count(OPEN) - text.count(CLOSE)) for text in texts)


def contains(text: str, value: Any) -> bool:
    """Whether a text contains a value, in any case; a number also as another spelling of it (1,234.0)."""
    wanted = str(value).strip()
    if not wanted:
        return False
    if wanted.lower() in text.lower():
        return True
    number = _NUMBER.fullmatch(wanted.replace(",", ""))
    found = _NUMBER.findall(text.replace(",", ""))
    return number is not None and any(abs(float(each) - float(number.group())) < 1e-6 for each in found)


def _clamped(reward: float) -> float:
    return max(-MOST, min(MOST, reward))


class JudgeWithoutCalls(RewardModel):
    """A reward model for episodes without calls: rules and model together are clamped, as in MiniMind.

    Beside [`agent_reward`] it adds what is left of the sum; episodes with calls get nothing.
    """

    def __call__(self, prompts: Sequence, completions: Sequence, *args: Any, **columns: Any) -> list[float]:
        without = [i for i, messages in enumerate(completions) if not calls_of(messages)]
        rewards = [0.0] * len(completions)
        if without:
            judged = super().__call__([prompts[i] for i in without], [completions[i] for i in without])
            for i, opinion in zip(without, judged, strict=True):
                rules = single_turn_score(completions[i])
                rewards[i] = _clamped(rules + opinion) - _clamped(rules)
        return rewards
