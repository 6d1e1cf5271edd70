# SPDX-License-Identifier: Apache-2.0
"""The shared-prompt layout: each prompt is computed once, and all its completions attend to it.

All tokens of a micro-batch form one row without padding: for each group the prompt, then its completions. Tokens at
the end of a completion that no scored token depends on (the last one at least) are left out, unless a router's loss
must count them. In every completion, position ids continue from the prompt. Tokens interact only in attention, so only
attention has to know the layout: a prompt attends to itself, a completion to the prompt and to itself. The layout uses
transformers' attention interface and passes every other call on to the model's previous implementation.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .block_attention import block_attention, group_spans, pays_off
from .introspection import unwrap
from .kept_tokens import KeptTokens
from .token_batch import TokenBatch

ATTENTION_NAME = "sdpa_shared_prompt"


@dataclass
class Group:
    """One prompt, followed by its completions one after the other.

    Args:
        prompt_length (`int`): Tokens of the prompt.
        lengths (`list[int]`): Tokens of each of its G completions; those without tokens here are left out.
        gather (`Tensor` of shape `(G, longest)`, *optional*): Index of each completion's tokens among the tokens of
            all completions, padded with 0; `None` if they have equal lengths and no gathering is needed.
        scatter (`Tensor`, *optional*): Index of each token in the flattened `gather`.
        mask (`Tensor` of shape `(longest, prompt + longest)`): The positions that a completion token attends to.
    """

    prompt_length: int
    lengths: list[int]
    gather: Tensor | None
    scatter: Tensor | None
    mask: Tensor

    @property
    def count(self) -> int:
        return len(self.lengths)

    @property
    def completions_length(self) -> int:
        return sum(self.lengths)


@dataclass
class PackedBatch:
    """A micro-batch in the shared-prompt layout.

    Args:
        input_ids (`Tensor` of shape `(1, T)`), position_ids (`Tensor` of shape `(1, T)`): The row of tokens.
        multiplicity (`Tensor` of shape `(1, T)`): Number of tokens in the padded layout that each token stands for.
        groups (`list[Group]`): The positions of prompts and completions.
        predictors (`Tensor` of shape `(K,)`): Position of the token that predicts each scored token.
        targets (`Tensor` of shape `(K,)`): The scored tokens.
        slots (`Tensor` of shape `(K,)`): Their index in the flattened `(N, C)` of the padded layout.
        shape (`tuple[int, int]`): `(N, C)`.
        kept ([`KeptTokens`], *optional*): The sets that the K scored tokens were drawn from; stays on the host.
    """

    input_ids: Tensor
    position_ids: Tensor
    multiplicity: Tensor
    groups: list[Group]
    predictors: Tensor
    targets: Tensor
    slots: Tensor
    shape: tuple[int, int]
    kept: KeptTokens | None = None

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
    ids, positions, weights, predictors, targets, slots = [], [], [], [], [], []
    groups = []
    width = batch.width
    for rows in batch.groups():
        prompt = batch.prompt_ids[rows[0]]
        ids += prompt
        positions += range(len(prompt))
        weights += [len(rows)] * len(prompt)
        prompt_end, lengths = len(ids), []
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
            if needed:
                lengths.append(needed)
        groups.append(_group(len(prompt), lengths, batch.device))
    ids, positions, weights, predictors, targets, slots = (
        torch.tensor(values, dtype=torch.long).to(batch.device)
        for values in (ids, positions, weights, predictors, targets, slots)
    )
    return PackedBatch(
        input_ids=ids[None],
        position_ids=positions[None],
        multiplicity=weights[None],
        groups=groups,
        predictors=predictors,
        targets=targets,
        slots=slots,
        shape=(len(batch), width),
        kept=batch.scored_sets(),
    )


def _group(prompt_length: int, lengths: list[int], device: torch.device) -> Group:
    longest = max(lengths, default=0)
    mask = torch.ones(longest, prompt_length + longest, dtype=torch.bool, device=device).tril(diagonal=prompt_length)
    if len(set(lengths)) <= 1:
        return Group(prompt_length, lengths, None, None, mask)
    counts = torch.tensor(lengths)
    within = torch.arange(longest) < counts[:, None]
    starts = counts.cumsum(0) - counts
    gather = torch.where(within, starts[:, None] + torch.arange(longest), 0)
    scatter = within.flatten().nonzero().squeeze(1)
    return Group(prompt_length, lengths, gather.to(device), scatter.to(device), mask)


def shared_prompt_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    shared_prompt: list[Group] | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention for transformers' interface: in the layout of this module with `shared_prompt`, else `sdpa`."""
    if shared_prompt is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    longest_context = max(group.prompt_length + max(group.lengths, default=0) for group in shared_prompt)
    if dropout == 0.0 and pays_off(query, longest_context):
        return _in_blocks(query, key, value, shared_prompt, scaling).transpose(1, 2), None
    options = {"dropout_p": dropout, "scale": scaling}
    return _by_group(query, key, value, shared_prompt, options).transpose(1, 2), None


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, groups: list[Group], scaling: float | None) -> Tensor:
    """Block attention, for long contexts on a CPU: `(1, heads, T, width)`, as wide as the values."""
    spans, start = [], 0
    for group in groups:
        spans += group_spans(start, group.prompt_length, group.lengths, query.shape[1], query.device)
        start += group.prompt_length + group.completions_length
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return block_attention(query[0], key[0], value[0], spans, scaling)[None]


def _by_group(query: Tensor, key: Tensor, value: Tensor, groups: list[Group], options: dict) -> Tensor:
    """torch's fused attention, group by group: `(1, heads, T, width)`, as wide as the values."""
    repeats = query.shape[1] // key.shape[1]
    # Split, do not slice: the backward of a slice fills a whole tensor with zeros, that of a split joins the pieces.
    sizes = [size for group in groups for size in (group.prompt_length, group.completions_length)]
    pieces = zip(*(states.split(sizes, dim=2) for states in (query, key, value)), strict=True)
    outputs = []
    for group in groups:
        prompt_query, prompt_key, prompt_value = next(pieces)
        completions = next(pieces)
        outputs.append(_attend(prompt_query, prompt_key, prompt_value, repeats, is_causal=True, **options))
        if group.count:
            q, k, v = (_by_completion(states[0], group) for states in completions)
            k = torch.cat([prompt_key.expand(group.count, -1, -1, -1), k], dim=2)
            v = torch.cat([prompt_value.expand(group.count, -1, -1, -1), v], dim=2)
            attended = _attend(q, k, v, repeats, attn_mask=group.mask, **options)
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


AttentionInterface.register(ATTENTION_NAME, shared_prompt_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def attach(model: nn.Module) -> None:
    """Makes a model's attention understand the layout; every other call works as before."""
    unwrap(model).set_attn_implementation(ATTENTION_NAME)


def detach(model: nn.Module) -> None:
    """Undoes [`attach`]."""
    unwrap(model).set_attn_implementation("sdpa")
