# SPDX-License-Identifier: Apache-2.0
"""Whether a fast decoder draws what the model's own forward draws: asked by a run of itself, on its own device.

Both decode a few tokens after real prompts. The plain one goes ahead and the fast one is given its tokens, so that at
every step both have seen the same. Midway rows leave the batch in another order. Noise is a function of completion and
position, so none is taken from the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ...forward.introspection import unwrap
from ...forward.on_device import on_device
from ...forward.proof import Finding, found_by, random_states_kept, tolerance_of
from ..agreement import rank
from ..samples import SamplingParams
from .decoder import Decoder
from .draws import Drawer, Drawn
from .noise import stream

logger = logging.get_logger(__name__)

MOST_PROMPTS, ROWS_EACH, TOKENS = 3, 2, 12
STAYING = (4, 0, 3)  # rows that stay after half of the tokens, where there are as many


@dataclass
class Trace:
    """What a decoder computed, step by step.

    Attributes:
        logits (`list[Tensor]`, each of shape `(rows, vocab)`)
        token_ids (`list[Tensor]`), logprobs (`list[Tensor]`, each of shape `(rows,)`): What was drawn from them.
    """

    logits: list[Tensor] = field(default_factory=list)
    token_ids: list[Tensor] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)

    def add(self, logits: Tensor, drawn: Drawn) -> None:
        for values, new in (
            (self.logits, logits),
            (self.token_ids, drawn.token_ids),
            (self.logprobs, drawn.logprobs),
        ):
            values.append(new.clone())  # the next step may overwrite it


def few_prompts(prompt_ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """The first prompts that differ, and the shortest and the longest: unequal lengths are what goes wrong."""
    unequal = {tuple(ids): None for ids in prompt_ids}
    chosen = {min(unequal, key=len): None, max(unequal, key=len): None} | unequal
    return [list(ids) for ids in list(chosen)[:MOST_PROMPTS]]


def trace(
    decoder: Decoder, prompts: Sequence[Sequence[int]], sampling: SamplingParams, given: Trace | None = None
) -> Trace:
    """Decodes a few tokens after each prompt, the drawn ones or those of another trace."""
    traced, draw = Trace(), Drawer(sampling, decoder.device)
    first = decoder.prefill(prompts)
    groups = [group for group in range(len(prompts)) for _ in range(ROWS_EACH)]
    decoder.start_rows(groups)
    rows, logits = list(range(len(groups))), first[on_device(groups, decoder.device)]
    count = sampling.max_completion_length
    draw.place((stream(sampling.seed, row), 0) for row in rows)
    drawn = draw(logits)
    traced.add(logits, drawn)
    for number in range(count - 1):
        token_ids = drawn.token_ids if given is None else given.token_ids[number]
        if number == count // 2:
            staying = [row for row in STAYING if row < len(rows)]
            decoder.reorder(staying)
            rows, token_ids = [rows[row] for row in staying], token_ids[on_device(staying, decoder.device)]
            draw.place((stream(sampling.seed, row), number + 1) for row in rows)
        drawn = decoder.step_and_draw(token_ids, draw)
        traced.add(decoder.logits, drawn)
    return traced


def compare_decoders(
    fast: Callable[[], Decoder],
    plain: Callable[[], Decoder],
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    dtype: torch.dtype,
) -> Finding:
    """Compares what two decoders compute and draw after a few prompts, with `ROWS_EACH` rows for each.

    Args:
        fast (`Callable`), plain (`Callable`): Make the decoders.
        dtype (`torch.dtype`): What they compute in.
    """
    decoder = plain()
    with random_states_kept(decoder.device):
        of_plain = trace(decoder, prompts, sampling)
        device = decoder.device
        del decoder  # its memory is for the other
        return found_by(lambda: _judge(trace(fast(), prompts, sampling, of_plain), of_plain, dtype, device))


def _judge(fast: Trace, plain: Trace, dtype: torch.dtype, device: torch.device) -> Finding:
    allowed = tolerance_of(dtype, device)
    apart = torch.cat([_apart(*pair) for pair in zip(fast.logits, plain.logits, strict=True)])
    same = torch.cat(fast.token_ids) == torch.cat(plain.token_ids)
    logprobs = (torch.cat(fast.logprobs) - torch.cat(plain.logprobs)).double().masked_fill(~same, 0.0)
    return Finding.of(
        {
            "logits": (apart.quantile(1 - allowed.outliers, interpolation="higher").item(), allowed.logits),
            "drawn tokens": ((~same).double().mean().item(), allowed.tokens),
            "log-probabilities": ((logprobs.square().sum() / same.sum().clamp(min=1)).sqrt().item(), allowed.logps),
        },
        dtype,
    )


def _apart(fast: Tensor, plain: Tensor) -> Tensor:
    """The root mean square difference of each row, in standard deviations of its logits."""
    fast, plain = (logits.double() - logits.double().mean(dim=1, keepdim=True) for logits in (fast, plain))
    return (fast - plain).norm(dim=1) / plain.norm(dim=1).clamp(min=1e-12)


class Proofs:
    """Which fast paths hold on which models, asked when a rollout is due to take one.

    Args:
        mode (`str`): `"first"` asks once for a model on another device than a CPU, `"always"` before every rollout
            and on CPUs, `"off"` never.
    """

    def __init__(self, mode: str):
        self.mode = mode
        self._found: WeakKeyDictionary[nn.Module, dict[tuple[str, str], Finding]] = WeakKeyDictionary()

    def holds(self, path: str, model: nn.Module, device: torch.device, compare: Callable[[], Finding]) -> bool:
        """Whether a path may be taken. What it finds for the first time is said in one line.

        Args:
            path (`str`): Its name.
            compare (`Callable`): Compares it with the plain path.
        """
        if self.mode == "off" or (self.mode == "first" and device.type == "cpu"):
            return True
        found = self._found.setdefault(unwrap(model), {})
        known = found.get((path, str(device)))
        if known is not None and (known.fault or self.mode == "first"):
            return known.fault is None
        found[path, str(device)] = new = compare()
        if known is None or new.fault:
            self._say(path, model, device, new)
        return new.fault is None

    def _say(self, path: str, model: nn.Module, device: torch.device, found: Finding) -> None:
        name = type(unwrap(model)).__name__
        if found.fault:
            logger.warning(
                "Rollouts of %s on %s use the model's own forward, token by token: the %s path differs (%s).",
                *(name, device, path, found.fault),
            )
        elif rank() == 0:
            logger.warning(
                "Rollouts of %s on %s use the %s path, which equals the model's own forward (%s).",
                *(name, device, path, found.largest),
            )
