# SPDX-License-Identifier: Apache-2.0
"""The shared-prompt layout: each prompt is computed once, and all its completions attend to it.

All tokens of a micro-batch form one row without padding: for each group the prompt, then its completions. Tokens at
the end of a completion that no scored token depends on (the last one at least) are left out, unless a router's loss
must count them. In every completion, position ids continue from the prompt. Tokens interact only in attention, so only
attention has to know the layout: a prompt attends to itself, a completion to the prompt and to itself. The layout uses
transformers' attention interface and passes every other call on to the model's previous implementation.

Two kernels compute it, each by the name of an attention implementation: FlexAttention on devices ([`FLEX_NAME`]), and
torch's fused attention group by group, in blocks for long contexts on a CPU ([`ATTENTION_NAME`]).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .block_attention import block_attention, group_spans, has_all_queries, pays_off
from .flex import flex_row_attention
from .introspection import unwrap
from .kept_tokens import KeptTokens
from .on_device import on_device
from .row_layout import Group, RowLayout
from .token_batch import TokenBatch

ATTENTION_NAME = "sdpa_shared_prompt"
FLEX_NAME = "flex_shared_prompt"


@dataclass
class PackedBatch:
    """A micro-batch in the shared-prompt layout.

    Args:
        input_ids (`Tensor` of shape `(1, T)`), position_ids (`Tensor` of shape `(1, T)`): The row of tokens.
        multiplicity (`Tensor` of shape `(1, T)`): Number of tokens in the padded layout that each token stands for.
        layout ([`RowLayout`]): The positions of prompts and completions.
        predictors (`Tensor` of shape `(K,)`): Position of the token that predicts each scored token.
        read (`Tensor` of shape `(R,)`): Positions of the tokens whose output the last layer has to compute.
        targets (`Tensor` of shape `(K,)`): The scored tokens.
        slots (`Tensor` of shape `(K,)`): Their index in the flattened `(N, C)` of the padded layout.
        shape (`tuple[int, int]`): `(N, C)`.
        kept ([`KeptTokens`], *optional*): The sets that the K scored tokens were drawn from; stays on the host.
    """

    input_ids: Tensor
    position_ids: Tensor
    multiplicity: Tensor
    layout: RowLayout
    predictors: Tensor
    read: Tensor
    targets: Tensor
    slots: Tensor
    shape: tuple[int, int]
    kept: KeptTokens | None = None

    def attention_inputs(self) -> dict[str, Any]:
        """What a model's forward must be given for its attention."""
        # A mask with four dimensions is used as it is; the attention of this layout builds its own.
        return {"attention_mask": self.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool), "shared_prompt": self.layout}

    @property
    def read_predictors(self) -> Tensor:
        """Index of each predictor among the tokens that are read."""
        return torch.searchsorted(self.read, self.predictors)

    def to_padded(self, values: Tensor) -> Tensor:
        """Puts one value per scored token, shape `(K,)`, into `(N, C)`; 0 everywhere else."""
        rows, width = self.shape
        return values.new_zeros(rows * width).index_copy(0, self.slots, values).view(rows, width)


def pack(batch: TokenBatch, keep_last_tokens: bool = False) -> PackedBatch:
    """Packs a batch without padding and with every prompt once.

    This happens on the host, so no length has to be read back from the device.

    Args:
        batch ([`TokenBatch`]): The completions and their prompts.
        keep_last_tokens (`bool`): Keep the tokens at the end of a completion that no scored token depends on.

    Returns:
        [`PackedBatch`]
    """
    return pack_rows(batch, batch.groups(), keep_last_tokens)


def pack_rows(batch: TokenBatch, groups: list[list[int]], keep_last_tokens: bool) -> PackedBatch:
    """Packs a batch without padding, with one prompt for each of `groups`, whose completions follow it."""
    ids, positions, weights, predictors, read, targets, slots = [], [], [], [], [], [], []
    lengths, places_read = [], []
    width = batch.width
    for rows in groups:
        prompt = batch.prompt_ids[rows[0]]
        ids += prompt
        positions += range(len(prompt))
        weights += [len(rows)] * len(prompt)
        prompt_end, of_prompt = len(ids), []
        read_here: list[Sequence[int]] = [[]]
        for row in rows:
            completion, start, places = batch.completion_ids[row], len(ids), batch.scored_places(row)
            last_predictor = places[-1] if places else 0  # the token before the last scored one
            needed = len(completion) if keep_last_tokens else last_predictor
            ids += completion[:needed]
            positions += range(len(prompt), len(prompt) + needed)
            weights += [1] * needed
            predictors += [start + place - 1 if place else prompt_end - 1 for place in places]
            targets += [completion[place] for place in places]
            slots += [row * width + place for place in places]
            of_prompt.append(needed)
            if places and places[0] == 0:
                read_here[0] = [len(prompt) - 1]
            if needed:
                read_here.append(
                    range(needed) if has_all_queries(needed) else [place - 1 for place in places if place]
                )
        lengths.append((len(prompt), of_prompt))
        starts = accumulate(filter(None, (len(prompt), *of_prompt)), initial=prompt_end - len(prompt))
        read += [start + place for start, places in zip(starts, read_here, strict=False) for place in places]
        places_read.append(read_here)
    ids, positions, weights, predictors, read, targets, slots = (
        on_device(values, batch.device) for values in (ids, positions, weights, predictors, read, targets, slots)
    )
    layout = RowLayout.of(lengths, batch.device)
    layout.read = places_read
    return PackedBatch(
        input_ids=ids[None],
        position_ids=positions[None],
        multiplicity=weights[None],
        layout=layout,
        predictors=predictors,
        read=read,
        targets=targets,
        slots=slots,
        shape=(len(batch), width),
        kept=batch.scored_sets(),
    )


def shared_prompt_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    shared_prompt: RowLayout | None = None,
    only_read: bool = False,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention for transformers' interface: in the layout of this module with `shared_prompt`, else `sdpa`.

    With `only_read`, the queries are those of the tokens that are read; always in blocks.
    """
    if shared_prompt is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    shared_prompt.windows_seen.append(sliding_window)
    window = shared_prompt.hides(sliding_window)
    if only_read or (window is None and dropout == 0.0 and pays_off(query, shared_prompt.longest_context)):
        read = shared_prompt.read if only_read else None
        return _in_blocks(query, key, value, shared_prompt.groups, scaling, read).transpose(1, 2).contiguous(), None
    options = {"dropout_p": dropout, "scale": scaling}
    return _by_group(query, key, value, shared_prompt, window, options).transpose(1, 2).contiguous(), None


def flex_shared_prompt_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    shared_prompt: RowLayout | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The same through FlexAttention, which has no dropout: with dropout it goes group by group."""
    if shared_prompt is None or dropout > 0.0:
        options = {"scaling": scaling, "dropout": dropout, "sliding_window": sliding_window}
        return shared_prompt_attention(
            module, query, key, value, attention_mask, **options, shared_prompt=shared_prompt, **kwargs
        )
    shared_prompt.windows_seen.append(sliding_window)
    mask = shared_prompt.flex(shared_prompt.hides(sliding_window))
    return flex_row_attention(query, key, value, mask, scaling).transpose(1, 2).contiguous(), None


def _in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: list[Group],
    scaling: float | None,
    read: list[list[Sequence[int]]] | None = None,
) -> Tensor:
    """Block attention, for long contexts on a CPU: `(1, heads, queries, width)`, as wide as the values."""
    spans, start, query_start = [], 0, 0
    for number, group in enumerate(groups):
        queried = [range(each) for each in (group.prompt_length, *group.lengths)] if read is None else read[number]
        prompt = slice(start, start + group.prompt_length)
        spans += group_spans(prompt, group.lengths, queried, query_start, query.shape[1], query.device)
        start = prompt.stop + group.completions_length
        query_start += sum(map(len, queried))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return block_attention(query[0], key[0], value[0], spans, scaling)[None]


def _by_group(
    query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, window: int | None, options: dict
) -> Tensor:
    """torch's fused attention, group by group: `(1, heads, T, width)`, as wide as the values."""
    repeats = query.shape[1] // key.shape[1]
    # Split, do not slice: the backward of a slice fills a whole tensor with zeros, that of a split joins the pieces.
    sizes = [size for group in layout.groups for size in (group.prompt_length, group.completions_length)]
    pieces = zip(*(states.split(sizes, dim=2) for states in (query, key, value)), strict=True)
    outputs = []
    for group, (prompt_mask, mask) in zip(layout.groups, layout.masks(window), strict=True):
        prompt_query, prompt_key, prompt_value = next(pieces)
        completions = next(pieces)
        causal = {"is_causal": True} if prompt_mask is None else {"attn_mask": prompt_mask}
        outputs.append(_attend(prompt_query, prompt_key, prompt_value, repeats, **causal, **options))
        if group.count:
            q, k, v = (_by_completion(states[0], group) for states in completions)
            k = torch.cat([prompt_key.expand(group.count, -1, -1, -1), k], dim=2)
            v = torch.cat([prompt_value.expand(group.count, -1, -1, -1), v], dim=2)
            attended = _attend(q, k, v, repeats, attn_mask=mask, **options)
            outputs.append(_by_token(attended, group))
    return torch.cat(outputs, dim=2)


def _attend(query: Tensor, key: Tensor, value: Tensor, repeats: int, **options) -> Tensor:
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    return F.scaled_dot_product_attention(query, key, value, **options)


def _by_completion(states: Tensor, group: Group) -> Tensor:
    """`(heads, tokens, dim)` -> `(G, heads, longest, dim)`."""
    if group.gather is not None:
        states = states[:, group.gather.flatten()]
    return states.unflatten(1, (group.count, -1)).transpose(0, 1)


def _by_token(states: Tensor, group: Group) -> Tensor:
    """`(G, heads, longest, dim)` -> `(1, heads, tokens, dim)`."""
    states = states.transpose(0, 1).flatten(1, 2)
    if group.scatter is not None:
        states = states[:, group.scatter]
    return states[None]


for _name, _attention in ((ATTENTION_NAME, shared_prompt_attention), (FLEX_NAME, flex_shared_prompt_attention)):
    AttentionInterface.register(_name, _attention)
    AttentionMaskInterface.register(_name, sdpa_mask)


def attach(model: nn.Module, name: str = ATTENTION_NAME) -> None:
    """Makes a model's attention understand the layout; every other call works as before.

    Args:
        model: A causal LM or a token classifier.
        name (`str`): The kernel: [`ATTENTION_NAME`] or [`FLEX_NAME`].
    """
    unwrap(model).set_attn_implementation(name)


def detach(model: nn.Module) -> None:
    """Undoes [`attach`]."""
    unwrap(model).set_attn_implementation("sdpa")


def kernels_for(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The kernels to try on a device, the fastest first. FlexAttention compiles no float64."""
    on_device = device.type == "cuda" and dtype != torch.float64
    return (FLEX_NAME, ATTENTION_NAME) if on_device else (ATTENTION_NAME,)
