# SPDX-License-Identifier: Apache-2.0
"""The embedded tasks of several turns: what is held out, what worked episodes show, and what their rewards say."""

import random

import pytest
from agent_tasks import (
    COST,
    HELD_OUT,
    NUMBERS,
    OPTIMUM,
    TASKS,
    CalculatorTask,
    GuessGame,
    GuessTask,
    copied_by_turn,
    correct_answer,
    equal_at_start,
)
from agent_world import _examples, make_model, make_tokenizer, measure, play

from minimind_hf.agent import Turn, TurnReader, TurnTemplate, calculate


@pytest.fixture(scope="module", params=sorted(TASKS))
def task(request):
    return TASKS[request.param]()


@pytest.fixture(scope="module")
def tokenizer(task):
    return make_tokenizer(task)


def key(row: dict) -> tuple:
    return tuple(str(value) for value in row.values())


def test_held_out_rows_are_not_trained_on_and_are_the_same_in_every_run(task):
    assert {key(row) for row in task.train}.isdisjoint(key(row) for row in task.held_out)
    again = type(task)()
    assert (again.train, again.held_out) == (task.train, task.held_out)


def test_worked_episodes_show_the_way_but_often_miss_the_end(task):
    rng = random.Random(1)
    worked = [(row, task.worked(row, rng)) for row in (task.train * 20)[:1000]]
    solved = sum(task.is_solved(*each) for each in worked) / 1000
    learned = sum(task.is_learned(*each) for each in worked) / 1000
    if task.name == "calculator":
        assert 0.25 <= solved <= 0.35 and learned == 1
    else:
        assert 0.5 <= solved <= 0.7 and learned > 0.9
    assert all(messages[-1]["role"] == "assistant" for _, messages in worked)


def test_worked_episodes_are_learned_as_the_policy_would_draw_them(task, tokenizer):
    """The ids are the prompt's, each turn's, and those that an episode puts between turns; turns alone are learned."""
    agent, rng = task.agent(tokenizer), random.Random(1)
    template, reader = (
        TurnTemplate(tokenizer, (tokenizer.eos_token_id,)),
        TurnReader(tokenizer, (tokenizer.eos_token_id,)),
    )
    template.prove(tools=bool(task.tools), conversation=not task.tools)
    for row in task.train[:20]:
        state = rng.getstate()
        (encoded,) = _examples(task, tokenizer, [row], rng)
        rng.setstate(state)
        messages = task.worked(row, rng)
        ids = tokenizer.apply_chat_template(
            task.opening(row), tools=agent.schemas(row) or None, add_generation_prompt=True, return_dict=False
        )
        labels = [-100] * len(ids)
        for message in messages:
            if message["role"] == "assistant":
                text = tokenizer.apply_chat_template([message], tokenize=False)
                text = text.removeprefix("<|im_start|>assistant\n").removesuffix("\n")
                more = tokenizer(text, add_special_tokens=False)["input_ids"]
                read = reader.read(more).message
                assert read.get("tool_calls") == message.get("tool_calls") and read["content"] == message["content"]
                labels += more
            else:
                more = template.ids_between([message])
                labels += [-100] * len(more)
            ids = ids + more
        assert encoded["input_ids"][: len(ids)] == ids
        assert encoded["labels"][: len(ids)] == labels and set(encoded["labels"][len(ids) :]) <= {-100}
    agent.close()


def test_an_untrained_model_plays_and_fails(task, tokenizer):
    model, rows = make_model(tokenizer, seed=0).eval(), task.held_out[:3]
    episodes = play(task, model, tokenizer, rows, samples=2)
    assert len(episodes) == 6 and all(episode.messages[0]["role"] == "assistant" for episode in episodes)
    assert measure(task, model, tokenizer, rows, samples=2)["accuracy"] == 0.0


# The calculator

ROW = {"expression": "37*48", "answer": "1776"}


def episode(expression: str, told: str, said: str) -> list[dict]:
    call = {"name": "calculate", "arguments": {"expression": expression}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "name": "calculate", "content": told},
        {"role": "assistant", "content": said},
    ]


@pytest.mark.parametrize(
    ("messages", "answer", "by_turn"),
    [
        (episode("37*48", "1776", "1776"), 1, [1, 1]),
        (episode("37*48", "1776", "1777"), 0, [1, 3 / 4]),
        (episode("37*48", "1776", "17761"), 0, [1, 4 / 5]),  # one digit too many
        (episode("37*49", "1813", "1813"), 0, [4 / 5, 1]),  # the last turn does what it can
        (episode("39*48", "1872", "1776"), 1, [1 / 5, 1 / 4]),  # right by luck
        (episode("37*48", "1776", "1776")[:1], 0, [1]),
        (episode("37*48", "1776", "")[:2] + episode("1+1", "2", "2"), 0, [1, 0, 1]),  # a second call
        ([{"role": "assistant", "content": "1776"}], 1, [0]),  # without a call
        ([{"role": "assistant", "content": ""}], 0, [0]),
    ],
)
def test_rewards_of_the_calculator(messages, answer, by_turn):
    assert correct_answer([messages], [ROW["answer"]]) == [answer]
    assert copied_by_turn([messages], [ROW["expression"]]) == [pytest.approx(by_turn)]


@pytest.mark.parametrize(("found", "expected"), [("", 0), ("12", 2 / 3), ("123", 1), ("1234", 3 / 4), ("923", 0)])
def test_equal_at_start(found, expected):
    assert equal_at_start(found, "123") == pytest.approx(expected)


def test_answers_are_what_the_calculator_says():
    for row in CalculatorTask().held_out:
        assert calculate(row["expression"]) == row["answer"]


# The game


def turn(text: str) -> Turn:
    return Turn({"role": "assistant", "content": text}, 0)


def test_the_game_says_higher_and_lower_and_each_turn_costs():
    game = GuessGame()
    assert game.reset(low=10, high=40, number=25, prompt=[], seed=3) == "10 to 40"
    replies = [game.respond(turn(text)) for text in ("12", "30", "twenty", "-5", " 25\n")]
    assert [reply.messages for reply in replies] == [
        "higher: 13 to 40",
        "lower: 13 to 29",
        "a number",
        "a number",
        None,
    ]
    assert [reply.reward for reply in replies] == pytest.approx([-COST] * 4 + [1 - COST])
    assert [reply.done for reply in replies] == [False] * 4 + [True]


def test_what_is_left_does_not_grow_by_a_guess_outside():
    game = GuessGame()
    game.reset(low=10, high=24, number=20)
    replies = [game.respond(turn(text)).messages for text in ("15", "11", "22", "90", "0")]
    assert replies == ["higher: 16 to 24"] * 2 + ["lower: 16 to 21"] * 2 + ["higher: 16 to 21"]


def test_halving_finds_each_number_in_four_turns():
    turns = []
    for number in range(10, 10 + NUMBERS):
        game = GuessGame()
        game.reset(low=10, high=10 + NUMBERS - 1, number=number)
        turns.append(1)
        while not game.respond(turn(str(game.middle))).done:
            turns[-1] += 1
    assert max(turns) == 4 < GuessTask.settings["max_turns"]
    assert sum(turns) / len(turns) == pytest.approx(OPTIMUM) == pytest.approx(3.27, abs=0.005)


def states(row: dict) -> list[tuple[int, int]]:
    """What is left in each turn of a game that is halved."""
    game, found = GuessGame(), []
    game.reset(**row)
    done = False
    while not done:
        found.append((game.low, game.high))
        done = game.respond(turn(str(game.middle))).done
    return found


def test_the_best_play_of_held_out_games_is_seen_in_other_games_and_takes_as_many_turns():
    task = GuessTask()
    assert len(task.held_out) == HELD_OUT * NUMBERS <= 0.2 * (len(task.train) + len(task.held_out))
    seen = {state for row in task.train for state in states(row)}
    assert all(set(states(row)) <= seen for row in task.held_out)
    assert {row["number"] for row in task.held_out} <= {row["number"] for row in task.train}
    assert sum(len(states(row)) for row in task.held_out) / len(task.held_out) == pytest.approx(OPTIMUM)
