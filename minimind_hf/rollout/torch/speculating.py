# SPDX-License-Identifier: Apache-2.0
"""Speculation as the engine sees it: what is refused, what is tried, and what is measured before the first draft."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ...forward.introspection import unwrap
from ..samples import SamplingParams
from .cache_decoder import CacheDecoder
from .caches import why_not_parked
from .decoder import Decoder
from .drafts import Drafts, Speculator
from .pass_costs import MOST_TOKENS, PassCosts
from .sampling import sample
from .truncated import sample_truncated

SPECULATIONS = ("self",)
NO_DRAFTS_IN_GRAPHS = "speculation decodes several tokens of a row at once, but the steps of path='graph' have one"


class Speculating:
    """What speculation adds to [`TorchEngine`], whose decoders and trials it uses.

    Attributes:
        speculator ([`Speculator`], *optional*): What drafts come from; unset without speculation.
    """

    speculator: Speculator | None
    max_batch_rows: int
    _is_trying: bool

    def _speculate(self, speculation: str | None, path: str) -> None:
        """Takes the setting.

        Raises:
            ValueError: If it is unknown, or the path of the engine has steps of one token.
        """
        if speculation not in (None, *SPECULATIONS):
            raise ValueError(f"speculation must be None or {SPECULATIONS[0]!r}, got {speculation!r}.")
        if speculation and path == "graph":
            raise ValueError(
                f"speculation={speculation!r} with path={path!r}: {NO_DRAFTS_IN_GRAPHS}. Leave speculation unset, or "
                "use path='auto'."
            )
        self.speculator = Speculator() if speculation else None
        self._draftable: WeakSet[nn.Module] = WeakSet()  # models that passed the check

    def measured(self) -> dict[str, tuple[float, float]]:
        return {} if self.speculator is None else self.speculator.measured()

    def state_dict(self) -> dict[str, Any]:
        """With speculation, what drafts are made of."""
        return {} if self.speculator is None else self.speculator.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.speculator is not None and state:
            self.speculator.load_state_dict(state)

    def _check_drafts(self, model: nn.Module) -> None:
        """Refuses speculation with a model whose rows cannot be cut back, and tries it."""
        if self.speculator is None or model in self._draftable:
            return
        if not self._takes_packed(model):
            refuse_uncut(model)
            self._try(model, "decode drafts", lambda: append_and_cut(model, self._cast_dtype()))
        self._draftable.add(model)

    def _begin_drafts(
        self, path: str, prompt_ids: Sequence[Sequence[int]], sampling: SamplingParams, decoder: Decoder
    ) -> Drafts | None:
        """Starts the drafts of a request, whose decoder this is. The first one measures what passes cost."""
        if self.speculator is None or self._is_trying:
            return None

        def another(prompt: Sequence[int], max_rows: int, max_length: int) -> Decoder:
            few = replace(sampling, max_completion_length=max_length)
            return self._decoder(path, [prompt], few, max_rows, 1, packed=getattr(decoder, "weights", None))

        longest = max(prompt_ids, key=len)
        return self.speculator.begin(lambda: measure_passes(another, longest, sampling, self.max_batch_rows))

    def _end_drafts(self, drafts: Drafts | None) -> None:
        if drafts is not None:
            self.speculator.end(drafts)


def refuse_uncut(model: nn.Module) -> None:
    """Refuses a model from whose cache tokens cannot be taken back.

    Raises:
        ValueError: With the model's class and the reason.
    """
    if reason := why_not_parked(model):
        raise ValueError(
            f"speculation='self' does not work with {type(unwrap(model)).__name__}: {reason}, so tokens that were "
            "guessed wrong could not be taken back. Leave speculation unset."
        )


@torch.no_grad()
def append_and_cut(model: nn.Module, autocast_dtype: torch.dtype | None) -> None:
    """Does with a model's own forward what drafts do."""
    was_training = model.training
    model.eval()
    try:
        decoder = CacheDecoder(model, autocast_dtype)
        decoder.prefill([[0, 0, 0], [0]])
        decoder.start_rows([0, 1, 1])
        decoder.append([[0], [0, 0], [0]])
        decoder.cut([0, 1, 0])
        decoder.step(torch.zeros(3, dtype=torch.long, device=decoder.device))
    finally:
        model.train(was_training)


def measure_passes(
    make_decoder: Callable[[Sequence[int], int, int], Decoder],
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    most_rows: int,
) -> PassCosts:
    """Measures what passes cost after a prompt.

    Args:
        make_decoder (`Callable`): Makes a decoder for a prompt, at most so many rows, and completions so long.
        most_rows (`int`): Rows for which there is memory.
    """
    prompt = prompt_ids[: max(1, len(prompt_ids) - MOST_TOKENS)]  # what follows must fit into the model's context

    def draw(logits: Tensor) -> tuple:
        uniforms = torch.full((len(logits),), 0.5, dtype=torch.float64, device=logits.device)
        return (sample_truncated if sampling.is_truncated else sample)(logits, sampling, uniforms)

    return PassCosts.measure(lambda rows: make_decoder(prompt, rows, MOST_TOKENS), prompt, draw, most_rows)
