# SPDX-License-Identifier: Apache-2.0
"""What is no rollout engine, and what an engine must not return."""

import math

from .checks_of_kept import fault_of_kept
from .samples import FINISH_REASONS, Rollout, SamplingParams


def check_engine(engine: object) -> None:
    """Refuses an object that is not a rollout engine.

    Raises:
        TypeError: With its class and the missing methods.
    """
    if isinstance(engine, type):
        raise TypeError(f"rollout_engine is the class {engine.__name__}. Pass an instance, {engine.__name__}().")
    missing = [name for name in ("generate", "sync_weights") if not callable(getattr(engine, name, None))]
    if missing:
        raise TypeError(
            f"rollout_engine is a {type(engine).__name__}, which has no {' and no '.join(missing)}. Subclass "
            "minimind_hf.RolloutEngine, or add these methods. To choose an engine by name, set it in the config."
        )


def check_rollouts(
    rollouts: object,
    num_expected: int,
    vocab_size: int,
    engine: object,
    max_completion_length: int | None = None,
    sampling: SamplingParams | None = None,
) -> None:
    """Refuses rollouts that `generate` of an engine must not return, before they reach the loss.

    Args:
        rollouts (`list[Rollout]`): What the engine returned.
        num_expected (`int`): Prompts times completions per prompt.
        vocab_size (`int`): Number of ids that the policy embeds.
        engine ([`RolloutEngine`]): Named in errors.
        max_completion_length (`int`, *optional*): Number of the policy's tokens after which a turn is cut. What an
            engine puts between them by itself is not counted.
        sampling ([`SamplingParams`], *optional*): If it is truncated, completions without sets are refused.

    Raises:
        ValueError: With the engine's class, the index of the completion and its fault.
    """
    _check_number(rollouts, num_expected, engine, "(prompts x num_generations, prompt-major)")
    for index, rollout in enumerate(rollouts):
        fault = (
            _fault(rollout, vocab_size)
            or _fault_of_turns(rollout, "max_completion_length", max_completion_length)
            or fault_of_kept(rollout, vocab_size, sampling)
        )
        _refuse(fault, index, engine)


def check_episodes(
    rollouts: object, num_expected: int, vocab_size: int, engine: object, sampling: SamplingParams
) -> None:
    """Refuses rollouts that `converse` of an engine must not return.

    Args:
        rollouts (`list[Rollout]`): What the engine returned.
        num_expected (`int`): Number of sessions.
        vocab_size (`int`): Number of ids that the policy embeds.
        engine ([`RolloutEngine`]): Named in errors.
        sampling ([`SamplingParams`]): Its lengths are those of the episode and of each turn.

    Raises:
        ValueError: With the engine's class, the index of the episode and its fault.
    """
    _check_number(rollouts, num_expected, engine, "(one per session, in their order)")
    for index, rollout in enumerate(rollouts):
        fault = (
            _fault(rollout, vocab_size)
            or _fault_of_turns(rollout, "max_turn_length", sampling.max_turn_length)
            or fault_of_kept(rollout, vocab_size, sampling)
        )
        if fault is None and len(rollout.completion_ids) > sampling.max_completion_length:
            fault = (
                f"{len(rollout.completion_ids)} tokens, but max_completion_length={sampling.max_completion_length} "
                "was asked for"
            )
        _refuse(fault, index, engine)


def _check_number(rollouts: object, num_expected: int, engine: object, order: str) -> None:
    if not isinstance(rollouts, list) or len(rollouts) != num_expected:
        found = f"{len(rollouts)} completions" if isinstance(rollouts, list) else type(rollouts).__name__
        raise ValueError(
            f"Rollout engine {type(engine).__name__} returned {found}, expected a list of {num_expected} Rollout "
            f"{order}."
        )


def _refuse(fault: str | None, index: int, engine: object) -> None:
    if fault is not None:
        raise ValueError(
            f"Rollout engine {type(engine).__name__} returned a bad completion at index {index}: {fault}."
        )


def _fault(rollout: object, vocab_size: int) -> str | None:
    if not isinstance(rollout, Rollout):
        return f"it is a {type(rollout).__name__}, not a Rollout"
    ids, logprobs, loss_mask = rollout.completion_ids, rollout.logprobs, rollout.loss_mask
    fault = _fault_of_types(rollout)
    if fault:
        return fault
    if len(ids) == 0:
        return "it has no tokens (an ended completion has at least its EOS)"
    if len(logprobs) != len(ids):
        return f"{len(logprobs)} log-probabilities for {len(ids)} tokens"
    if loss_mask is not None and len(loss_mask) != len(ids):
        return f"a loss_mask of {len(loss_mask)} for {len(ids)} tokens"
    if loss_mask is not None and not set(loss_mask) <= {0, 1}:
        return f"a loss_mask with {sorted(set(loss_mask) - {0, 1})}, expected 0 and 1 only"
    if min(ids) < 0 or max(ids) >= vocab_size:
        return f"token ids from {min(ids)} to {max(ids)} with a vocabulary of {vocab_size}"
    if rollout.finish_reason not in FINISH_REASONS:
        return f"finish_reason {rollout.finish_reason!r}, expected one of {FINISH_REASONS}"
    mine = loss_mask or [1] * len(ids)
    bad = (i for i, logp in enumerate(logprobs) if mine[i] and not (math.isfinite(logp) and logp <= 1e-3))
    if (position := next(bad, None)) is not None:
        return (
            f"log-probabilities that are not finite numbers of at most 0; the first is {logprobs[position]}, of token "
            f"{position}"
        )
    return None


def _fault_of_turns(rollout: Rollout, setting: str, most: int | None) -> str | None:
    longest = max((end - start for start, end in rollout.turns), default=0)
    if most is not None and longest > most:
        return f"{longest} tokens in a row, but {setting}={most} was asked for"
    return None


def _fault_of_types(rollout: Rollout) -> str | None:
    expected = {"completion_ids": (int,), "logprobs": (int, float), "loss_mask": (int,)}
    for name, kinds in expected.items():
        values = getattr(rollout, name)
        if values is None and name == "loss_mask":
            continue
        if not isinstance(values, list):
            return f"its {name} are a {type(values).__name__}, not a list"
        others = [kind.__name__ for kind in set(map(type, values)) if not issubclass(kind, kinds)]
        if others:
            return f"its {name} hold values of type {', '.join(sorted(others))}, expected {kinds[-1].__name__}"
    if not isinstance(rollout.weights_version, int):
        return f"weights_version {rollout.weights_version!r}, expected the int that sync_weights was given"
    return None
