# SPDX-License-Identifier: Apache-2.0
"""Runs a causal LM on completions and hands over, in place of its logits, what its head is given.

`read(project, hidden, rows)` gets the hidden states `(K, H)` that predict the scored tokens of a batch, completion by
completion, and the head as a function from these to logits. It runs inside the head's own forward, so everything that
wraps the model (DDP, DeepSpeed, FSDP, peft) works as it does with logits. A model that changes its logits after the
head (a cap, a scale) is read at its logits instead, which `project` then leaves as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .introspection import unwrap
from .logprobs import call_padded, mean_aux_loss, packed_inputs, padded_inputs
from .on_device import on_device
from .scoring_head import replaced_head
from .shared_prompt import PackedBatch
from .token_batch import TokenBatch, made_up_batch
from .varlen import packed_for

IN_ONE_ROW = ("shared_prompt", "varlen")  # layouts that only models take whose head is the last that they compute
Project = Callable[[Tensor], Tensor]
Read = Callable[[Project, Tensor, slice], Tensor]


def read_head(
    model: nn.Module,
    batch: TokenBatch,
    layout: str,
    read: Read,
    reads_head: bool = True,
    with_aux_loss: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Runs a model on a batch and returns what was read at the K scored tokens.

    Args:
        model: A causal LM; for `shared_prompt` and `varlen`, one that [`choose_layout`] accepted for it.
        batch ([`TokenBatch`]): The completions and their prompts.
        layout (`str`): As for [`score_completions`].
        read (`Callable`): `(project, hidden, rows)` -> `(R, D)` for R of the K tokens, `rows` of all.
        reads_head (`bool`): Whether nothing follows the head; see [`head_is_last`].
        with_aux_loss (`bool`): Also return the router's auxiliary loss (mixture-of-experts models only).

    Returns:
        `(values, aux_loss)`: `(K, D)`, in the order of the completions and their tokens.
    """
    if layout in IN_ONE_ROW:
        return _read_packed(model, packed_for(layout, batch, with_aux_loss), read, with_aux_loss)
    parts = [batch] if layout == "padded" else batch.by_prompt()
    found, losses, start = [], [], 0
    for part in parts:
        rows = slice(start, start + sum(len(part.scored_places(row)) for row in range(len(part))))
        values, aux_loss = _read_padded(model, part, read, rows, reads_head, with_aux_loss)
        found.append(values)
        losses.append(aux_loss if with_aux_loss else None)
        start = rows.stop
    return torch.cat(found), losses[0] if layout == "padded" else mean_aux_loss(losses, batch)


def _read_packed(
    model: nn.Module, packed: PackedBatch, read: Read, with_aux_loss: bool
) -> tuple[Tensor, Tensor | None]:
    rows = slice(0, len(packed.targets))
    head = unwrap(model).get_output_embeddings()
    with replaced_head(head, lambda project, hidden: read(project, hidden[0], rows)[None]):
        outputs = model(**packed_inputs(model, packed, with_aux_loss))
    return outputs.logits[0], outputs.aux_loss if with_aux_loss else None


def _read_padded(
    model: nn.Module, batch: TokenBatch, read: Read, rows: slice, reads_head: bool, with_aux_loss: bool
) -> tuple[Tensor, Tensor | None]:
    places = [batch.scored_places(row) for row in range(len(batch))]
    columns = sorted({place for of_row in places for place in of_row})
    inputs = padded_inputs(*batch.padded(), with_aux_loss)

    def call() -> Any:
        return call_padded(model, inputs, columns, batch.width)

    if reads_head:
        head = unwrap(model).get_output_embeddings()
        with replaced_head(
            head, lambda project, hidden: read(project, _at(hidden, places, columns, batch.width), rows)[None]
        ):
            outputs = call()
        values = outputs.logits[0]
    else:
        outputs = call()
        values = read(unchanged, _at(outputs.logits, places, columns, batch.width), rows)
    return values, getattr(outputs, "aux_loss", None)


def unchanged(logits: Tensor) -> Tensor:
    """The head of a model that is read at its logits."""
    return logits


def _at(values: Tensor, places: Sequence[Sequence[int]], columns: Sequence[int], width: int) -> Tensor:
    """Picks what predicts the scored tokens: `(N, positions, D)` -> `(K, D)`; see [`call_padded`]."""
    positions = values.shape[1]
    if positions == len(columns):
        of_column = {column: index for index, column in enumerate(columns)}
    else:
        of_column = {column: positions - width - 1 + column for column in columns}
    index = [row * positions + of_column[place] for row, of_row in enumerate(places) for place in of_row]
    return values.flatten(0, 1)[on_device(index, values.device)]


def can_read_head(model: nn.Module, layout: str) -> bool:
    """Whether a model's head can be read in a layout; if not, its logits are."""
    return layout in IN_ONE_ROW or head_is_last(model)


@torch.no_grad()
def head_is_last(model: nn.Module) -> bool:
    """Whether the model's logits are what its head returns, found by trying it.

    Args:
        model: A causal LM with whole weights.
    """
    head = unwrap(model).get_output_embeddings()
    if head is None:
        return False
    batch = made_up_batch(unwrap(model).config.get_text_config().vocab_size, next(model.parameters()).device)
    returned: list[Tensor] = []
    was_training = model.training
    hook = head.register_forward_hook(lambda module, inputs, output: returned.append(output))
    model.eval()
    try:
        inputs = padded_inputs(*batch.padded(), with_aux_loss=False)
        logits = call_padded(model, inputs, range(batch.width), batch.width).logits
    finally:
        hook.remove()
        model.train(was_training)
    return len(returned) == 1 and returned[0].shape == logits.shape and torch.equal(returned[0], logits)
