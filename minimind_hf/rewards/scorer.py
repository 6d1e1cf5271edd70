# SPDX-License-Identifier: Apache-2.0
"""Many reward functions become one matrix of signals.

As in trl, a function is called once with the whole batch and the arguments it names (or all, if it takes `**kwargs`).
Async functions run together on an event loop of the scorer, so that clients that they keep survive from call to call
and the running loop of a notebook does not matter. Every value that a function returns is checked: `None` means that
the signal does not apply to a completion and becomes NaN; anything else that is not a finite number is an error that
names the function and the completion. For a completion of several turns, a function may return a list instead, one
number per turn. A function that raised is not called again, because a judge costs money.
"""

import inspect
import math
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from numbers import Real
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..environment import Terminated
from ..event_loop import LoopThread, Pending, cancel
from .columns import OWN_ARGUMENTS, check_columns, check_reserved, parameters_of, required_arguments
from .errors import RewardError
from .model import RewardModel
from .resolve import RewardFunction, resolve_reward, unique_names
from .rules import completion_text
from .signals import Signals, joined_signals

_EXCERPT = 200
_ROWS_SHOWN = 4
_LARGEST = torch.finfo(torch.float32).max


class RewardScorer:
    """Calls reward functions and collects their signals.

    Args:
        reward_funcs (`Sequence[str | Callable | PreTrainedModel]`, or one of these):
            Built-in names (`"length"`), import paths (`"module:name"`, `"file.py:name"`), paths of reward models,
            models, and callables `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, also
            async ones. A function may return a list of numbers for a completion, one per turn.
        weights (`Sequence[float]`, *optional*): Weight of each signal. Unset: 1.0.
        processing_classes (`Sequence[PreTrainedTokenizerBase | None]`, or one, *optional*):
            Tokenizers of the reward models, in the order of `reward_funcs`.
        model_kwargs (`dict`, *optional*): Arguments of [`RewardModel.from_pretrained`], such as `trust_remote_code`.
        may_be_empty (`bool`): Whether there may be no function at all; every completion then has no signal.

    Attributes:
        names (`list[str]`): A unique name for each signal.
        weights (`torch.Tensor` of shape `(num_signals,)`): The weights.
        functions (`list[Callable]`): The functions that are called.
        processing_classes (`list[PreTrainedTokenizerBase | None]`): The tokenizers of reward models.

    Raises:
        RewardError: If a function cannot be found or loaded, or the numbers of functions and weights differ.
    """

    def __init__(
        self,
        reward_funcs: Sequence[str | RewardFunction | torch.nn.Module] | str | RewardFunction | torch.nn.Module,
        weights: Sequence[float] | None = None,
        processing_classes: Sequence[PreTrainedTokenizerBase | None] | PreTrainedTokenizerBase | None = None,
        *,
        model_kwargs: dict[str, Any] | None = None,
        may_be_empty: bool = False,
    ):
        specs = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        if not specs and not may_be_empty:
            raise RewardError("reward_funcs is empty. Give at least one, for example reward_funcs=['length'].")
        tokenizers = _one_each("reward_processing_classes", processing_classes, len(specs), None)
        self._given = _one_each("reward_weights", weights, len(specs), 1.0)
        self.weights = _check_weights(self._given)
        self.functions = [resolve_reward(s, t, model_kwargs) for s, t in zip(specs, tokenizers, strict=True)]
        own = [getattr(each, "tokenizer", None) if isinstance(each, RewardModel) else None for each in self.functions]
        self.processing_classes = [given or found for given, found in zip(tokenizers, own, strict=True)]
        self.names = unique_names(self.functions)
        self._loop = LoopThread("async-rewards")

    def to(self, device: str | torch.device) -> "RewardScorer":
        """Moves the reward models among the functions to a device."""
        for function in self.functions:
            if isinstance(function, (RewardModel, torch.nn.Module)):
                function.to(device)
        return self

    def follow(self, weights: Sequence[float] | None) -> None:
        """Takes other weights, if `reward_weights` has been changed since it was last looked at.

        Raises:
            RewardError: If there is not one finite number for each function.
        """
        each = _one_each("reward_weights", weights, len(self.functions), 1.0)
        if each != self._given:
            self._given, self.weights = each, _check_weights(each)

    def close(self) -> None:
        """Ends the thread of async functions, if there is one."""
        self._loop.close()

    def check_columns(self, columns: Collection[str], given: Collection[str] = ()) -> None:
        """Refuses data that the functions cannot work with, before there is anything to score.

        Args:
            columns (`Collection[str]`): Names of the other columns of the data set.
            given (`Collection[str]`): Names of further arguments that will be passed.

        Raises:
            RewardError: If a function needs a column that is missing, or a column has the name of an argument.
        """
        arguments = (*OWN_ARGUMENTS, *given)
        check_reserved(columns, arguments)
        for name, function in zip(self.names, self.functions, strict=True):
            check_columns(name, function, columns, arguments)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: dict[str, Sequence[Any]],
        **extra: Any,
    ) -> torch.Tensor:
        """Scores completions.

        Args:
            prompts (`list[str]` or `list[list[dict]]`): One prompt per completion.
            completions (`list[str]` or `list[list[dict]]`): The N completions.
            completion_ids (`list[list[int]]`): Their token ids.
            columns (`dict[str, list]`): The other columns of the data set, one value per completion.
            extra: Other arguments for the functions that take them, passed unchanged (`trainer_state`, ...).

        Returns:
            `torch.Tensor` of shape `(N, num_signals)`: The signals in float32, NaN where a function returned `None`.

        Raises:
            RewardError: If a function raises, or does not return one finite number or `None` for each completion.
        """
        return self.score(prompts, completions, completion_ids, columns, **extra).values

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: dict[str, Sequence[Any]],
        **extra: Any,
    ) -> Signals:
        """Does the same, and returns the parts of turns too.

        Args:
            prompts, completions, completion_ids, columns: As for calling the scorer.
            extra: The same; among them may be `num_turns` (`list[int]`), the turns of each completion. Unset: 1.

        Returns:
            [`Signals`]
        """
        return self.begin(prompts, completions, completion_ids, columns, **extra).result()

    def begin(self, *arguments: Any, **extra: Any) -> Pending:
        """Does the same, and does not wait for async functions; the result is what [`score`] returns."""
        batch, answers = _Batch(*arguments, extra), []
        try:
            for name, function in zip(self.names, self.functions, strict=True):
                answers.append(self._start(name, function, batch))
        except BaseException:
            cancel(answers)
            raise
        return Pending(any(isinstance(each, Future) for each in answers), lambda: self._collect(answers, batch))

    def _collect(self, answers: list[Any], batch: "_Batch") -> Signals:
        try:
            given = [self._finish(name, answer, batch) for name, answer in zip(self.names, answers, strict=True)]
        finally:
            cancel(answers)
        return joined_signals([_checked(n, a, batch) for n, a in zip(self.names, given, strict=True)], len(batch))

    def _start(self, name: str, function: RewardFunction, batch: "_Batch") -> Any:
        arguments = batch.arguments_for(name, function)
        try:
            answer = function(**arguments)
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # an exit would end the run as if it had succeeded
            raise _raised(name, batch, error) from error
        return self._loop.submit(answer) if inspect.isawaitable(answer) else answer

    def _finish(self, name: str, answer: Any, batch: "_Batch") -> Any:
        if not isinstance(answer, Future):
            return answer
        try:
            return self._loop.result_of(answer)
        except Terminated:
            raise
        except (Exception, SystemExit) as error:
            raise _raised(name, batch, error) from error


class _Batch:
    """The arguments of one call."""

    def __init__(self, prompts, completions, completion_ids, columns: dict[str, Any], extra: dict[str, Any]):
        own = dict(zip(OWN_ARGUMENTS, (prompts, completions, completion_ids), strict=True))
        check_reserved(columns, {*own, *extra})
        self.per_completion = {**own, **columns}
        self.extra = extra
        for name, values in self.per_completion.items():
            if len(values) != len(completions):
                raise RewardError(f"{name!r} has {len(values)} values, but there are {len(completions)} completions.")

    def __len__(self) -> int:
        return len(self.per_completion["completions"])

    def arguments_for(self, name: str, function: RewardFunction) -> dict[str, Any]:
        """The arguments that the function takes, as copies; an error if it needs one that is missing."""
        arguments = {**self.per_completion, **self.extra}
        parameters = parameters_of(function)
        if parameters is not None:
            missing = [key for key in required_arguments(function) if key not in arguments]
            if missing:
                raise RewardError(
                    f"The reward function {name!r} needs the argument {missing[0]!r}, which is not a column of the "
                    f"data set; it can have {sorted(arguments)}. Add the column, or give the argument a default."
                )
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                arguments = {key: value for key, value in arguments.items() if key in parameters}
        return {key: _copied(value) if key in self.per_completion else value for key, value in arguments.items()}

    def num_turns(self, i: int) -> int:
        return self.extra.get("num_turns", [1] * len(self))[i]

    def describe(self, i: int) -> str:
        prompt = self.per_completion["prompts"][i]
        prompt = prompt if isinstance(prompt, str) else prompt[-1].get("content")
        completion = completion_text(self.per_completion["completions"][i])
        return f"sample {i}:\n  prompt: {_excerpt(prompt)}\n  completion: {_excerpt(completion)}"


def _raised(name: str, batch: _Batch, error: BaseException) -> RewardError:
    """The error to raise when a function raised, with the rows it was given."""
    shown = "\n".join(batch.describe(i) for i in range(min(len(batch), _ROWS_SHOWN)))
    given = f"{len(batch)} completions, the first of them" if len(batch) > _ROWS_SHOWN else "these completions"
    return RewardError(
        f"The reward function {name!r} raised {type(error).__name__}: {error}\nIt was given {given}:\n{shown}"
    )


def _checked(name: str, answer: Any, batch: _Batch) -> list[float | list[float]]:
    if isinstance(answer, torch.Tensor):
        answer = answer.detach().cpu()
    values = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(values, (list, tuple)):
        raise RewardError(
            f"The reward function {name!r} returned {_excerpt(answer)} ({type(answer).__name__}), expected a list of "
            f"{len(batch)} numbers (one per completion, or None where the signal does not apply)."
        )
    if len(values) != len(batch):
        raise RewardError(
            f"The reward function {name!r} returned {len(values)} rewards, expected {len(batch)}: one per completion, "
            "or None where the signal does not apply."
        )
    return [_rewards(name, value, i, batch) for i, value in enumerate(values)]


def _rewards(name: str, value: Any, i: int, batch: _Batch) -> float | list[float]:
    """The reward of a completion, or a list of the rewards of its turns."""
    if getattr(value, "ndim", 0) == 1 and not (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return _number(name, value, i, batch)
    if len(value) != batch.num_turns(i):
        raise RewardError(
            f"The reward function {name!r} returned {_excerpt(value)}, a {type(value).__name__} of {len(value)} "
            f"rewards by turn, for a completion of {batch.num_turns(i)} turns, {batch.describe(i)}\nReturn one number "
            "for each turn (the argument num_turns says how many each completion has), or one for all of them."
        )
    numbers = [0.0 if each is None else _number(name, each, i, batch) for each in value]
    _number(name, math.fsum(numbers), i, batch)  # the sum is a reward too
    return numbers


def _number(name: str, value: Any, i: int, batch: _Batch) -> float:
    if value is None:
        return math.nan
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, Real) and not _is_numpy_bool(value):
        raise RewardError(
            f"The reward function {name!r} returned {_excerpt(value)} ({type(value).__name__}), which is not a "
            f"number, for {batch.describe(i)}"
        )
    number = torch.tensor(_as_float(value), dtype=torch.float32)
    if not number.isfinite():
        raise RewardError(
            f"The reward function {name!r} returned {_excerpt(value)}, which is not a finite number (in float32), for "
            f"{batch.describe(i)}\nReturn None where the signal does not apply."
        )
    return number.item()


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer too large for a float
        return math.inf


def _is_numpy_bool(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", None) == "b" and getattr(value, "shape", None) == ()


def _copied(value: Any) -> Any:
    """A copy of what functions could change, so that changes reach neither training nor other functions."""
    if isinstance(value, list):
        return [_copied(item) if isinstance(item, list | dict) else item for item in value]
    if isinstance(value, dict):
        return {key: _copied(item) if isinstance(item, list | dict) else item for key, item in value.items()}
    return value


def _one_each(what: str, values: Any, count: int, default: Any) -> list[Any]:
    if values is None:
        return [default] * count
    values = list(values) if isinstance(values, (list, tuple)) or hasattr(values, "tolist") else [values]
    if len(values) != count:
        raise RewardError(
            f"The number of {what} ({len(values)}) must match the number of reward functions ({count}). Give one for "
            "each function."
        )
    return values


def _check_weights(weights: list[float]) -> torch.Tensor:
    for weight in weights:
        if not isinstance(weight, (Real, torch.Tensor)) or not abs(weight) <= _LARGEST:
            raise RewardError(
                f"reward_weights holds {weight!r}, no finite number (in float32). Give one per reward function."
            )
    if weights and not any(weights):
        raise RewardError(
            f"The weights are {[float(weight) for weight in weights]}. If all are 0, every reward is 0 and nothing is "
            "learned. Give at least one function a weight; 0 is for functions that are only logged."
        )
    return torch.tensor([float(weight) for weight in weights], dtype=torch.float32)


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."
