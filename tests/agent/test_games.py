# SPDX-License-Identifier: Apache-2.0
"""Games of textarena by name, where it is installed; and the names that are refused."""

import sys

import pytest
from naming import raises_naming

from minimind_hf.agent import AgentError, TextArenaGame
from minimind_hf.agent.conversation import Turn
from minimind_hf.agent.games import environment_factory_of

PLAYABLE = (
    "GuessTheNumber-v0",
    "TowerOfHanoi-v0",
    "FrozenLake-v0",
    "LightsOut-v0",
    "Bandit-v0",
    "Mastermind-v0",
    "Countdown-v0",
    "Sudoku-v0",
    "Minesweeper-v0",
)


def turn(text: str) -> Turn:
    return Turn({"role": "assistant", "content": text}, 0)


def test_other_factories_stay_as_they_are():
    assert environment_factory_of(dict) is dict
    assert environment_factory_of(None) is None
    assert environment_factory_of({"a": dict})["a"] is dict


def test_a_text_that_names_no_game_is_refused():
    with raises_naming(AgentError, "environment_factory", "FrozenLake-v0", "textarena:FrozenLake-v0"):
        environment_factory_of("FrozenLake-v0")


def test_without_textarena_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with raises_naming(AgentError, "FrozenLake-v0", "minimind-hf[textarena]"):
        environment_factory_of("textarena:FrozenLake-v0")()


@pytest.mark.parametrize("name", PLAYABLE)
def test_a_game_is_the_same_for_a_seed_and_ends_by_invalid_moves(name):
    pytest.importorskip("textarena")
    first, second = (environment_factory_of(f"textarena:{name}")() for _ in range(2))
    assert first.reset(seed=3) == second.reset(seed=3) != ""
    replies = []
    while not replies or (not replies[-1].done and len(replies) < 4):
        replies.append(first.respond(turn("no move")))
    assert replies[-1].done and isinstance(replies[-1].reward, float)
    assert all(reply.messages.startswith("[GAME]") for reply in replies[:-1])
    assert first.reset(seed=3) == second.reset(seed=3)  # an instance plays again


def test_a_game_says_only_what_is_new():
    pytest.importorskip("textarena")
    game = TextArenaGame("FrozenLake-v0")
    rules = game.reset(seed=1)
    answer = game.respond(turn("I go [right]")).messages
    assert "Welcome" in rules and "Welcome" not in answer
    assert "(0, 1)" in answer and "I go" not in answer


def test_a_game_without_its_words_and_an_unknown_game_are_named():
    pytest.importorskip("textarena")
    with raises_naming(AgentError, "NoSuchGame-v0"):
        TextArenaGame("NoSuchGame-v0")
