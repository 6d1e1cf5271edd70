# SPDX-License-Identifier: Apache-2.0
"""The two tasks that recipes/agent.py runs without a model and data.

- `calculator`: arithmetic that a model this small cannot do, and a tool that can. The worked episodes show how it is
  called, with any of four operators, the right one hardly more often than the others. To learn: which word means
  which, and to copy numbers without a slip.
- `guess`: a number between two bounds, found by "higher" and "lower" in at most 6 turns. The worked episodes forget
  what they were told four times in five. To learn: to keep to it, and to halve what is left.
"""

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from agent_world import AgentTask

from minimind_hf.agent import Conversation, Reply, Turn, calculate

Messages = list[dict[str, Any]]

RIGHT = 0.3  # share of the worked calls with the right operator; of the others, each has less than a quarter
FORGETS = 0.8  # share of the worked guesses that forget what was told
OPERATORS = {"plus": "+", "minus": "-", "times": "*", "modulo": "%"}
SMALL = {"save_strategy": "no", "report_to": "none", "temperature": 0.8}


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def called_with(messages: Messages, name: str, argument: str) -> str:
    """The argument of the first call of a tool in an episode, as text; empty if there is none."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    found = next((call["arguments"] for call in calls if call["name"] == name), {})
    return str(found.get(argument, ""))


def final_answer(messages: Messages) -> str:
    """What the policy says in its last turn, if it is the end of the episode."""
    last = messages[-1]
    return last["content"].strip() if last["role"] == "assistant" and not last.get("tool_calls") else ""


def equal_at_start(found: Sequence, expected: Sequence) -> float:
    """The share of `expected` that `found` begins with; what is too long counts as one more that is wrong."""
    equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False))))
    return equal / (len(expected) + (len(found) > len(expected)))


# The calculator


def correct_answer(completions: list[Messages], answer: list[str], **columns: Any) -> list[float]:
    """1 for the right answer and nothing else in the last turn."""
    return [float(final_answer(each) == wanted) for each, wanted in zip(completions, answer, strict=True)]


def copied_by_turn(completions: list[Messages], expression: list[str], **columns: Any) -> list[list[float]]:
    """A reward for each turn: the share that it begins with of what it has to copy.

    That is the expression in the first turn, and in the others what the calculator has answered. So a turn is not
    blamed for the one before it.
    """
    return [_copied(*pair) for pair in zip(completions, expression, strict=True)]


def _copied(messages: Messages, expression: str) -> list[float]:
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    first = equal_at_start(called_with(messages[:1], "calculate", "expression"), expression)
    told = [_told(messages[:index]) for index in turns[1:]]
    said = [messages[index]["content"].strip() for index in turns[1:]]
    return [first, *(equal_at_start(*pair) for pair in zip(said, told, strict=True))]


def _told(messages: Messages) -> str:
    return next(message["content"] for message in reversed(messages) if message["role"] == "tool")


class CalculatorTask(AgentTask):
    """`What is 47 times 38?`, asked of a model that has a calculator."""

    name = "calculator"
    tools = (calculate,)
    rewards = (correct_answer, copied_by_turn)
    settings = {"max_turns": 3, "max_turn_length": 24, "max_completion_length": 64}
    defaults = {
        "grpo": {
            **SMALL,
            "output_dir": "outputs/agent_calculator",
            "max_steps": 150,
            "per_device_train_batch_size": 128,
            "num_generations": 8,
            "learning_rate": 2e-4,
            "adam_beta2": 0.98,
            "warmup_steps": 5,
            "beta": 0.0,
        },
        "ppo": {
            **SMALL,
            "output_dir": "outputs/agent_calculator_ppo",
            "max_steps": 400,
            "per_device_train_batch_size": 128,
            "mini_batch_size": 32,
            "ppo_update_iters": 2,
            "learning_rate": 3e-4,
            "critic_learning_rate": 1e-3,
            "adam_beta2": 0.98,
            "warmup_steps": 10,
            "kl_coef": 0.0,
        },
    }

    def __init__(self):
        rng = random.Random(0)
        drawn = ((rng.randrange(10, 100), rng.choice(list(OPERATORS)), rng.randrange(10, 100)) for _ in range(20_000))
        rows = [self._row(*each) for each in list(dict.fromkeys(drawn))[:8192]]
        self.held_out, self.train = rows[:256], rows[256:]

    @staticmethod
    def _row(a: int, word: str, b: int) -> dict[str, Any]:
        expression = f"{a}{OPERATORS[word]}{b}"
        return {
            "prompt": [{"role": "user", "content": f"What is {a} {word} {b}?"}],
            "numbers": [str(a), str(b)],
            "expression": expression,
            "answer": calculate(expression),
        }

    def opening(self, row: dict[str, Any]) -> Messages:
        return row["prompt"]

    def worked(self, row: dict[str, Any], rng: random.Random) -> Messages:
        others = [self._expression(row, sign) for sign in OPERATORS.values()]
        others.remove(row["expression"])
        expression = row["expression"] if rng.random() < RIGHT else rng.choice(others)
        answer = calculate(expression)
        told = {"role": "tool", "name": "calculate", "content": answer}
        return [_call("calculate", expression=expression), told, {"role": "assistant", "content": answer}]

    def is_learned(self, row: dict[str, Any], messages: Messages) -> bool:
        called = called_with(messages, "calculate", "expression")
        has_told = len(messages) > 1 and final_answer(messages) == messages[1]["content"]
        return has_told and called in [self._expression(row, sign) for sign in OPERATORS.values()]

    @staticmethod
    def _expression(row: dict[str, Any], sign: str) -> str:
        return sign.join(row["numbers"])

    def is_solved(self, row: dict[str, Any], messages: Messages) -> bool:
        return final_answer(messages) == row["answer"]


# The game

NUMBERS = 31  # between the bounds: halving finds each in 5 turns at most, in 4.16 on average
COST = 0.1  # of a turn


class GuessGame(Conversation):
    """Finds a number by "higher" and "lower". Each turn costs [`COST`], the right number earns 1."""

    def reset(self, low: int, high: int, number: int, **row: Any) -> str:
        self.number = number
        return f"{low} to {high}"

    def respond(self, turn: Turn) -> Reply:
        guess = turn.strip()
        if guess == str(self.number):
            return Reply(reward=1 - COST, done=True)
        if not (guess.isascii() and guess.isdigit()):
            return Reply("a number", reward=-COST)
        return Reply("higher" if int(guess) < self.number else "lower", reward=-COST)


class GuessTask(AgentTask):
    """`40 to 70`, and up to 6 turns."""

    name = "guess"
    environment_factory = GuessGame
    worked_per_row = 8
    measures = ("accuracy", "turns")
    settings = {"max_turns": 6, "max_turn_length": 5, "max_completion_length": 96}
    defaults = {
        "grpo": {
            **CalculatorTask.defaults["grpo"],
            "output_dir": "outputs/agent_guess",
            "max_steps": 200,
        },
        "ppo": {**CalculatorTask.defaults["ppo"], "output_dir": "outputs/agent_guess_ppo"},
    }

    def __init__(self):
        rows = [
            {"prompt": [{"role": "user", "content": "Guess: "}], "low": low, "high": low + NUMBERS - 1, "number": n}
            for low in range(10, 70, 10)
            for n in range(low, low + NUMBERS)
        ]
        random.Random(0).shuffle(rows)
        self.held_out, self.train = rows[:60], rows[60:]

    def opening(self, row: dict[str, Any]) -> Messages:
        said = GuessGame().reset(**row)
        return [{"role": "user", "content": row["prompt"][0]["content"] + said}]

    def worked(self, row: dict[str, Any], rng: random.Random) -> Messages:
        """Guesses at random: sometimes between what is known, mostly between the bounds."""
        game, low, high, messages = GuessGame(), row["low"], row["high"], []
        game.reset(**row)
        for _ in range(self.settings["max_turns"]):
            bounds = (row["low"], row["high"]) if rng.random() < FORGETS else (low, high)
            guess = rng.randint(*bounds)
            messages.append({"role": "assistant", "content": str(guess)})
            reply = game.respond(Turn(messages[-1], 0))
            if reply.done:
                return messages
            messages.append({"role": "user", "content": reply.messages})
            low, high = (max(low, guess + 1), high) if guess < row["number"] else (low, min(high, guess - 1))
        return messages[:-1]

    def is_learned(self, row: dict[str, Any], messages: Messages) -> bool:
        guesses = [message["content"] for message in messages if message["role"] == "assistant"]
        return all(guess.isdigit() and row["low"] <= int(guess) <= row["high"] for guess in guesses)

    def is_solved(self, row: dict[str, Any], messages: Messages) -> bool:
        return messages[-1]["role"] == "assistant" and messages[-1]["content"].strip() == str(row["number"])


TASKS = {task.name: task for task in (CalculatorTask, GuessTask)}
