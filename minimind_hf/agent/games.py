# SPDX-License-Identifier: Apache-2.0
"""Text games by name: `environment_factory="textarena:FrozenLake-v0"` (the extra `textarena`)."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

from transformers.utils import logging

from .conversation import Conversation, Reply, Turn
from .errors import AgentError

logger = logging.get_logger(__name__)

PREFIX = "textarena:"
_GAME = "\n[GAME]"  # begins what a game says


class TextArenaGame(Conversation):
    """A one-player game of textarena. Invalid moves and the reward are the game's own.

    Args:
        name (`str`): Of the game, such as `"FrozenLake-v0"`.

    Raises:
        AgentError: If textarena is not installed, or has no such game.
    """

    def __init__(self, name: str):
        self.name = name
        _make(name)  # so that an unknown name is refused at once

    def reset(self, seed: int | None = None) -> str:
        self._game = _make(self.name)  # a game that was played keeps what it has said
        with _naming_word_lists(self.name):
            self._game.reset(num_players=1, seed=seed)
        self._read = ""
        return self._news()

    def respond(self, turn: Turn) -> Reply:
        done, _ = self._game.step(str(turn))
        if not done:
            return Reply(self._news())
        rewards, _ = self._game.close()
        return Reply(reward=self._number(rewards[0]), done=True)

    def _news(self) -> str:
        """What the game has said since it was last asked, without the echo of the policy's move."""
        _, said = self._game.get_observation()
        new = said.removeprefix(self._read)
        self._read = said
        start = new.find(_GAME)
        return new[max(start, 0) :].strip()

    def _number(self, reward: Any) -> float:
        if isinstance(reward, Real):
            return float(reward)
        logger.warning_once(f"The game {self.name!r} gave the reward {reward!r:.80}, which is not a number; it is 0.")
        return 0.0


def environment_factory_of(given: Any) -> Any:
    """Returns the factory that a name stands for; anything else as it is, dictionaries entry by entry.

    Raises:
        AgentError: If it is a text that does not begin with `textarena:`.
    """
    if isinstance(given, dict):
        return {name: environment_factory_of(each) for name, each in given.items()}
    if not isinstance(given, str):
        return given
    if not given.startswith(PREFIX):
        raise AgentError(
            f"environment_factory is the text {given!r}, expected a class, or a game by its name such as "
            f"'{PREFIX}FrozenLake-v0'."
        )
    return _named(given.removeprefix(PREFIX))


def _named(name: str) -> Callable[[], TextArenaGame]:
    return partial(TextArenaGame, name)


def _make(name: str) -> Any:
    try:
        import textarena
    except ImportError as error:
        raise AgentError(
            f"The game {name!r} needs textarena, which is not installed ({error}). Run: pip install "
            "'minimind-hf[textarena]'"
        ) from error
    try:
        with _naming_word_lists(name):
            return textarena.make(name)
    except AgentError:
        raise
    except Exception as error:
        raise AgentError(
            f"textarena has no game {name!r}, or cannot make it ({type(error).__name__}: {str(error).strip()[:300]})."
        ) from error


@contextmanager
def _naming_word_lists(name: str) -> Iterator[None]:
    """Says what nltk's error means, which games end in whose words are not installed."""
    try:
        yield
    except LookupError as error:
        missing = re.search(r"nltk\.download\('([^']+)'\)", str(error))
        if missing is None:
            raise
        raise AgentError(
            f"The game {name!r} needs the word list {missing[1]!r} of nltk, which is not installed. With a network: "
            f"python -m nltk.downloader {missing[1]}; else choose another game."
        ) from error
