# SPDX-License-Identifier: Apache-2.0
"""The two tasks that recipes/agent.py runs without a model and data.

- `calculator`: arithmetic that a model this small cannot do, and a tool that can. Of the worked episodes, 60 % give up
  and 40 % call the tool, 70 % of these with the right operator. To learn: to call it, each time, with the operator
  that the word means, and to copy numbers without a slip.
- `guess`: a number between two bounds, found by "higher" and "lower" in at most 5 turns. Of the worked games, 40 %
  halve what is left, the others guess anywhere between the bounds. To learn: to halve it.
"""

import random
from collections.abc import Sequence
from itertools import product, takewhile
from typing import Any

from agent_world import AgentTask

from minimind_hf.agent import Conversation, Reply, Turn, calculate

Messages = list[dict[str, Any]]

CALLS = 0.4  # share of the worked episodes that call the calculator
GIVES_UP = "I do not know."  # the others
RIGHT = 0.7  # share of the worked calls with the right operator; the others multiply, or add where that is right
HALVES = 0.4  # share of the worked games that halve what is left in each turn
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
    """`What is 47 times 8?`, asked of a model that has a calculator."""

    name = "calculator"
    tools = (calculate,)
    rewards = (correct_answer, copied_by_turn)
    settings = {"max_turns": 3, "max_turn_length": 24, "max_completion_length": 64}
    defaults = {
        "grpo": {
            **SMALL,
            "output_dir": "outputs/agent_calculator",
            "sft_accuracy": 0.98,
            "max_steps": 60,
            "per_device_train_batch_size": 128,
            "num_generations": 8,
            "learning_rate": 4e-4,
            "adam_beta2": 0.98,
            "warmup_steps": 5,
            "beta": 0.0,
        },
        "ppo": {
            **SMALL,
            "output_dir": "outputs/agent_calculator_ppo",
            "sft_accuracy": 0.98,
            "max_steps": 60,
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
        rows = [self._row(*each) for each in product(range(10, 100), OPERATORS, range(2, 10))]
        rng.shuffle(rows)
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
        if rng.random() >= CALLS:
            return [{"role": "assistant", "content": GIVES_UP}]
        multiplied, added = (self._expression(row, sign) for sign in "*+")
        wrong = added if row["expression"] == multiplied else multiplied
        expression = row["expression"] if rng.random() < RIGHT else wrong
        answer = calculate(expression)
        told = {"role": "tool", "name": "calculate", "content": answer}
        return [_call("calculate", expression=expression), told, {"role": "assistant", "content": answer}]

    def is_learned(self, row: dict[str, Any], messages: Messages) -> bool:
        if len(messages) == 1:
            return final_answer(messages) == GIVES_UP
        called = called_with(messages, "calculate", "expression")
        return final_answer(messages) == messages[1]["content"] and called in [
            self._expression(row, sign) for sign in OPERATORS.values()
        ]

    @staticmethod
    def _expression(row: dict[str, Any], sign: str) -> str:
        return sign.join(row["numbers"])

    def is_solved(self, row: dict[str, Any], messages: Messages) -> bool:
        return final_answer(messages) == row["answer"]


# The game

NUMBERS = 15  # between the bounds: halving finds each in 4 turns at most, in OPTIMUM on average
OPTIMUM = (1 * 1 + 2 * 2 + 4 * 3 + 8 * 4) / NUMBERS  # 3.27 turns: one number is found in the first, two in the second
LOWS = range(10, 54, 4)  # lower bounds. Games overlap, and with a step of 4 halving asks the same in each of them
HELD_OUT = 2  # games of each place between the bounds
COST = 0.1  # of a turn


class GuessGame(Conversation):
    """Finds a number by "higher" and "lower". Each turn costs [`COST`], the right number earns 1."""

    def reset(self, low: int, high: int, number: int, **row: Any) -> str:
        self.low, self.high, self.number = low, high, number
        return f"{low} to {high}"

    @property
    def middle(self) -> int:
        """The guess that halves what is left."""
        return (self.low + self.high) // 2

    def respond(self, turn: Turn) -> Reply:
        guess = turn.strip()
        if guess == str(self.number):
            return Reply(reward=1 - COST, done=True)
        if not (guess.isascii() and guess.isdigit()):
            return Reply("a number", reward=-COST)
        is_low = int(guess) < self.number
        if is_low:
            self.low = max(self.low, int(guess) + 1)
        else:
            self.high = min(self.high, int(guess) - 1)
        return Reply(f"{'higher' if is_low else 'lower'}: {self.low} to {self.high}", reward=-COST)


class GuessTask(AgentTask):
    """`38 to 52`, and up to 5 turns.

    A row is a game: bounds and a number. Held out are two games of each place between the bounds, so halving takes
    [`OPTIMUM`] turns there too. The policy has been trained on these bounds with other numbers, and on these numbers
    between other bounds.
    """

    name = "guess"
    environment_factory = GuessGame
    worked_per_row = 8
    measures = ("accuracy", "turns")
    settings = {"max_turns": 5, "max_turn_length": 5, "max_completion_length": 96}
    defaults = {
        "grpo": {
            **CalculatorTask.defaults["grpo"],
            "output_dir": "outputs/agent_guess",
            "sft_accuracy": 0.85,
            "max_steps": 90,
            "per_device_train_batch_size": 64,
        },
        "ppo": {**CalculatorTask.defaults["ppo"], "output_dir": "outputs/agent_guess_ppo", "sft_accuracy": 0.85},
    }

    def __init__(self):
        rng = random.Random(0)
        held_out = {(low, low + place) for place in range(NUMBERS) for low in rng.sample(LOWS[1:-1], HELD_OUT)}
        rows = [self._row(low, low + place) for low in LOWS for place in range(NUMBERS)]
        rng.shuffle(rows)
        self.held_out = [row for row in rows if (row["low"], row["number"]) in held_out]
        self.train = [row for row in rows if (row["low"], row["number"]) not in held_out]

    @staticmethod
    def _row(low: int, number: int) -> dict[str, Any]:
        prompt = [{"role": "user", "content": "Guess: "}]
        return {"prompt": prompt, "low": low, "high": low + NUMBERS - 1, "number": number}

    def opening(self, row: dict[str, Any]) -> Messages:
        said = GuessGame().reset(**row)
        return [{"role": "user", "content": row["prompt"][0]["content"] + said}]

    def worked(self, row: dict[str, Any], rng: random.Random) -> Messages:
        """Halves what is left, or guesses anywhere between the first bounds."""
        game, messages, halves = GuessGame(), [], rng.random() < HALVES
        game.reset(**row)
        for _ in range(self.settings["max_turns"]):
            guess = game.middle if halves else rng.randint(row["low"], row["high"])
            messages.append({"role": "assistant", "content": str(guess)})
            reply = game.respond(Turn(messages[-1], 0))
            if reply.done:
                return messages
            messages.append({"role": "user", "content": reply.messages})
        return messages[:-1]

    def is_learned(self, row: dict[str, Any], messages: Messages) -> bool:
        """Whether all guesses lie between the bounds, and go on to halve what is left if the first does."""
        game, halves = GuessGame(), []
        game.reset(**row)
        for guess in (message["content"] for message in messages if message["role"] == "assistant"):
            if not (guess.isdigit() and row["low"] <= int(guess) <= row["high"]):
                return False
            halves.append(int(guess) == game.middle)
            game.respond(Turn({"role": "assistant", "content": guess}, 0))
        return all(halves) or not halves[0]

    def is_solved(self, row: dict[str, Any], messages: Messages) -> bool:
        return messages[-1]["role"] == "assistant" and messages[-1]["content"].strip() == str(row["number"])


TASKS = {task.name: task for task in (CalculatorTask, GuessTask)}
