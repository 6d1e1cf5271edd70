# SPDX-License-Identifier: Apache-2.0
"""A few completions token by token, for the report: what the engine, the policy, the reference and the critic say.

Two completions with the lowest and two with the highest advantage, of the rollouts whose first optimizer step is 1, 2,
4, 8, ..., and of the last one: few enough to keep, whatever the length of a run. Without advantages, rewards decide;
without rewards, the first four are kept. What the update computes anyway is taken from it, on its last pass over a
completion, and read from the device when it is written.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...algorithms import bounded_exp, k3
from ...reports.record import read_lines, write_lines
from ..experience.experience import Experience
from ..experience.micro_batch import MicroBatch

LOWEST = HIGHEST = 2
_DIGITS = 5
_LONGEST_CHARACTER = 8  # tokens, after which a character that is not whole is shown as it is

_Key = tuple[tuple[int, ...], tuple[int, ...]]  # ids of prompt and completion


class TokenLog:
    """Collects what the update says of chosen completions, in the main process.

    Args:
        path (`Path`): A file with one completion per line.
        tokenizer: Decodes tokens one by one.
        is_main_process (`bool`): Whether this process writes.
    """

    def __init__(self, path: Path, tokenizer: PreTrainedTokenizerBase, is_main_process: bool):
        self.path = path
        self._tokenizer, self._writes = tokenizer, is_main_process
        self._chosen: dict[_Key, dict[str, Any]] = {}

    def begin(self, step: int) -> None:
        """Continues after `step`; later lines are those of a run that is resumed from an earlier checkpoint."""
        self._chosen = {}
        kept = [row for row in read_lines(self.path, grows=True) if row["step"] <= step] if step else []
        if kept:
            write_lines(self.path, kept)
        else:
            self.path.unlink(missing_ok=True)

    def add(self, experience: Experience, step: int, is_last: bool) -> None:
        """Chooses completions of a rollout, and writes those of the rollout before.

        Args:
            experience ([`Experience`]): The rollout.
            step (`int`): The first optimizer step that trains on it, counted as in logs.
            is_last (`bool`): Whether it is the last rollout of the run.
        """
        self.write()
        if not self._writes or not (is_last or step & (step - 1) == 0):
            return
        advantages = None if experience.advantages is None else experience.advantages.tolist()
        for index in _ends(experience.counted):
            prompt, rollout = experience.prompt_of(index), experience.rollouts[index]
            key = (tuple(prompt["prompt_ids"]), tuple(rollout.completion_ids))
            self._chosen[key] = {
                "step": step,
                "prompt": prompt["prompt"],
                "reward": experience.rewards[index].item(),
                **({} if advantages is None else {"advantage": advantages[index]}),
                "wrote": rollout.loss_mask or [1] * len(rollout.completion_ids),
                "engine_logp": rollout.logprobs,
            }

    def see(self, batch: MicroBatch, logps: Tensor, is_training: bool, **further: Tensor) -> None:
        """Takes what a loss has computed of the chosen completions among a micro-batch.

        Args:
            batch ([`MicroBatch`]): N completions.
            logps (`Tensor` of shape `(N, C)`): Their log-probabilities.
            is_training (`bool`): Whether it is an update; else nothing is taken.
            **further (`Tensor` of shape `(N, C)`): More numbers of their tokens, under the names of the file.
        """
        if not self._chosen or not is_training:
            return
        for row, key in enumerate(zip(map(tuple, batch.prompt_ids), map(tuple, batch.completion_ids), strict=True)):
            if key in self._chosen:
                seen = {name: values[row, : len(key[1])] for name, values in further.items()}
                self._chosen[key]["seen"] = _of_row(batch, logps.detach(), row, len(key[1]), seen)

    def write(self) -> None:
        """Writes what was chosen and not written yet."""
        if not self._chosen:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for (_, ids), found in self._chosen.items():
                seen = {name: values.tolist() for name, values in found.pop("seen", {}).items()}
                row = {**found, "tokens": pieces_of(ids, self._tokenizer), **seen}
                file.write(json.dumps(_rounded(row), ensure_ascii=False) + "\n")
        self._chosen = {}


def _ends(experience: Experience) -> list[int]:
    """The completions with the lowest and the highest advantages or rewards; the first ones if none has any."""
    values = experience.rewards if experience.advantages is None else experience.advantages
    known = sorted((value, index) for index, value in enumerate(values.tolist()) if value == value)
    indices = [index for _, index in known]
    if experience.advantages is None and not indices:
        return list(range(len(values)))[: LOWEST + HIGHEST]
    return [*indices[:LOWEST], *indices[-HIGHEST:]] if len(indices) > LOWEST + HIGHEST else indices


@torch.no_grad()
def _of_row(batch: MicroBatch, logps: Tensor, row: int, length: int, further: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers of one completion, on the device, a value for each of its tokens."""
    new, old = logps[row, :length].float(), batch.old_logps[row, :length].float()
    found = {**further, "logp": new, "ratio": bounded_exp(new - old)}
    if batch.advantages is not None:
        own = batch.advantages[row]
        found["advantage_of_token"] = own.expand(length) if own.dim() == 0 else own[:length]
    if batch.ref_logps is not None:
        found["kl"] = k3(new, batch.ref_logps[row, :length].float())
    if batch.old_values is not None:
        found |= {"value": batch.old_values[row, :length], "return": batch.returns[row, :length]}
    return {name: values.detach().clone() for name, values in found.items()}


def pieces_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text that each token adds; of a character made of several tokens, the last one has all of it."""
    pieces, context, held = [], [], []
    for token in ids:
        held.append(token)
        text = tokenizer.decode([*context, *held])[len(tokenizer.decode(context)) :]
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(held) < _LONGEST_CHARACTER:
            pieces.append("")
            continue
        pieces.append(text)
        context, held = held, []  # some tokenizers write a token with or without a space before it
    if held:
        pieces[-1] = tokenizer.decode([*context, *held])[len(tokenizer.decode(context)) :]
    return pieces


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value - value == 0 else None  # NaN and infinities
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
