# SPDX-License-Identifier: Apache-2.0
"""What environments keep across episodes, in a form that a checkpoint can hold."""

import io
from typing import Any

import torch

from .errors import AgentError

SAVE, LOAD = "state_dict", "load_state_dict"


def has_state(environment: Any, where: str) -> bool:
    """Whether an environment has the pair `state_dict()` and `load_state_dict(state)`.

    Raises:
        AgentError: If it has only one of them.
    """
    found = [name for name in (SAVE, LOAD) if callable(getattr(environment, name, None))]
    if len(found) == 1:
        (missing,) = {SAVE, LOAD} - set(found)
        raise AgentError(
            f"{where} makes a {type(environment).__name__}, which has {found[0]} but no {missing}, so a checkpoint "
            f"could not bring back its state. Give it both: {SAVE}() and {LOAD}(state)."
        )
    return bool(found)


def state_of(environment: Any, label: str) -> Any:
    """The state of an environment.

    Raises:
        AgentError: If it cannot be had, or holds what a checkpoint cannot.
    """
    try:
        state = environment.state_dict()
    except Exception as error:
        raise AgentError(f"{label}.{SAVE} raised {type(error).__name__}: {error}") from error
    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:
        raise AgentError(
            f"{label}.{SAVE} returned {state!r:.80}, which a checkpoint cannot hold: it takes numbers, text, tensors, "
            f"and lists, tuples and dictionaries of them. ({str(error).splitlines()[0]})"
        ) from error
    return state


def load_state(environment: Any, state: Any, label: str) -> None:
    """Brings an environment into a state.

    Raises:
        AgentError: If it refuses it.
    """
    try:
        environment.load_state_dict(state)
    except Exception as error:
        raise AgentError(
            f"{label}.{LOAD}({state!r:.80}) raised {type(error).__name__}: {error} The state is from the checkpoint "
            "that is resumed: was the class changed since?"
        ) from error
