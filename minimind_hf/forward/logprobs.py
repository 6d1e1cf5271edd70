# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of completions, in two layouts.

The log-probabilities are those of the sampling distribution: for the policy and the reference alike, logits are
divided by the sampling temperature in float32, and where sampling was truncated, the softmax is over the set that a
token was drawn from. `padded` is the plain layout, with prompts padded on the left and
completions padded on the right. The fast layout, `shared_prompt`, is tested against it.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from .block_attention import pays_off
from .introspection import forward_arguments, unwrap
from .kept_tokens import KeptTokens
from .last_layer import takes_read_tokens
from .on_device import on_device
from .scoring_head import scoring_head
from .shared_prompt import PackedBatch
from .token_batch import TokenBatch


@dataclass
class TokenScores:
    """The results of one forward pass for the tokens of N completions.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probability of each completion token; arbitrary at padding, 0 at tokens
            that are not scored.
        entropy (`Tensor` of shape `(N, C)`, *optional*): Entropy in nats of the distribution at each position.
        aux_loss (`Tensor` of shape `()`, *optional*): The router's auxiliary loss of a mixture-of-experts model,
            before its coefficient.
    """

    logps: Tensor
    entropy: Tensor | None = None
    aux_loss: Tensor | None = None


def completion_scores(
    model: nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    temperature: float,
    with_entropy: bool = False,
    with_aux_loss: bool = False,
    entropy_gradient: bool = False,
    places: Sequence[Sequence[int]] | None = None,
    kept: KeptTokens | None = None,
) -> TokenScores:
    """Computes log-probabilities of completions, given their prompts, in the padded layout.

    Args:
        model: A causal LM of any architecture; its train/eval mode is not changed.
        prompt_ids (`Tensor` of shape `(N, P)`): Prompts, padded on the left.
        prompt_mask (`Tensor` of shape `(N, P)`): 1 for tokens, 0 for padding.
        completion_ids (`Tensor` of shape `(N, C)`): Completions, padded on the right.
        completion_mask (`Tensor` of shape `(N, C)`): 1 for tokens, 0 for padding.
        temperature (`float`): The temperature at which the completions were sampled.
        with_entropy (`bool`): Also return the entropies.
        with_aux_loss (`bool`): Also return the router's auxiliary loss (mixture-of-experts models only).
        entropy_gradient (`bool`): Whether the entropies have a gradient.
        places (`Sequence[Sequence[int]]`, *optional*): The tokens of each completion that are scored. Unset: all.
        kept ([`KeptTokens`], *optional*): The sets that they were drawn from, those of padding too if all are scored.

    Returns:
        [`TokenScores`]
    """
    width = completion_ids.shape[1]
    columns = list(range(width)) if places is None else sorted({place for of_row in places for place in of_row})
    inputs = padded_inputs(prompt_ids, prompt_mask, completion_ids, completion_mask, with_aux_loss)
    logits, aux_loss = _logits_before(model, inputs, columns, width)
    if places is None:
        targets = completion_ids
    else:
        chosen = _scored_slots(places, columns, width, completion_ids.device)
        slots, among_columns = chosen.unbind()
        logits, targets = logits.flatten(0, 1)[None, among_columns], completion_ids.flatten()[None, slots]
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    if kept is not None:
        cut = kept.cut(logits.shape[-1], logits.device)
        logits = logits.masked_fill_(cut.view(logits.shape), torch.finfo(logits.dtype).min)
    entropy = None
    with torch.autocast(logits.device.type, enabled=False):
        if with_entropy:
            with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
                entropy = entropy_from_logits(logits)
        logps = selective_log_softmax(logits, targets)
    if places is not None:
        logps, entropy = (
            None if each is None else _at_slots(each[0], slots, completion_ids.shape) for each in (logps, entropy)
        )
    return TokenScores(logps, entropy, aux_loss if with_aux_loss else None)


def padded_inputs(
    prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor, with_aux_loss: bool
) -> dict[str, Any]:
    """The arguments of a model's forward in the padded layout, those that it may not take included."""
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1).long()
    return {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "use_cache": False,
        "output_router_logits": with_aux_loss,
    }


def _logits_before(
    model: nn.Module, inputs: dict[str, Any], columns: Sequence[int], width: int
) -> tuple[Tensor, Tensor | None]:
    """Calls a model for the logits that predict some columns of completions that are `width` wide.

    Returns:
        `(logits, aux_loss)`: `(N, number of columns, V)`, and the router's loss if the model has one.
    """
    outputs = call_padded(model, inputs, columns, width)
    logits, aux_loss = outputs.logits, getattr(outputs, "aux_loss", None)
    if logits.shape[1] == len(columns):
        return logits, aux_loss
    logits = logits[:, -(width + 1) : -1]
    if len(columns) < width:
        logits = logits[:, on_device(columns, logits.device)]
    return logits, aux_loss


def call_padded(model: nn.Module, inputs: dict[str, Any], columns: Sequence[int], width: int) -> Any:
    """Calls a model so that its head computes no more positions than needed, as far as it can be told which.

    Args:
        model: A causal LM.
        inputs (`dict`): From [`padded_inputs`].
        columns (`Sequence[int]`): The columns of completions whose predictions are wanted.
        width (`int`): Columns in all.

    Returns:
        The model's output. Its head has seen the predictors of the columns; or, in place of those, at least the last
        `width + 1` positions, of which the first predicts column 0.
    """
    first = inputs["input_ids"].shape[1] - width - 1  # the last token of the prompt, which predicts column 0
    accepted = forward_arguments(model)
    inputs = {name: value for name, value in inputs.items() if name in accepted}
    if len(columns) < width and _keeps_any_logits(model):
        return model(**inputs, logits_to_keep=first + on_device(columns, inputs["input_ids"].device))
    return model(**inputs, **({"logits_to_keep": width + 1} if "logits_to_keep" in accepted else {}))


def _keeps_any_logits(model: nn.Module) -> bool:
    """Whether `logits_to_keep` of a model takes positions, as in transformers, and not only a number."""
    parameter = inspect.signature(type(unwrap(model)).forward).parameters.get("logits_to_keep")
    return parameter is not None and "Tensor" in str(parameter.annotation)


def _at_slots(values: Tensor, slots: Tensor, shape: torch.Size) -> Tensor:
    return values.new_zeros(shape.numel()).index_copy(0, slots, values).view(shape)


def _scored_slots(places: Sequence[Sequence[int]], columns: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Indices of the scored tokens in `(N, width)` and in `(N, number of columns)`, both flattened: `(2, K)`."""
    number = {column: index for index, column in enumerate(columns)}
    found = [(row * width + p, row * len(columns) + number[p]) for row, of_row in enumerate(places) for p in of_row]
    return on_device(found, device).view(-1, 2).t()


def joined_scores(parts: Sequence[TokenScores], batch: TokenBatch) -> TokenScores:
    """Puts the scores of a batch's prompts one below the other.

    Args:
        parts (`Sequence[TokenScores]`): Of each prompt's completions, in order.
        batch ([`TokenBatch`]): All of them.

    Returns:
        [`TokenScores`] of shape `(N, C)`; the router's loss is the mean over the parts by their tokens.
    """

    def joined(of_parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(part, (0, batch.width - part.shape[1])) for part in of_parts])

    entropy = None
    if parts[0].entropy is not None:
        entropy = joined([part.entropy for part in parts])
    return TokenScores(
        joined([part.logps for part in parts]), entropy, mean_aux_loss([part.aux_loss for part in parts], batch)
    )


def mean_aux_loss(losses: Sequence[Tensor | None], batch: TokenBatch) -> Tensor | None:
    """The mean of the router's losses of a batch's prompts, by their tokens."""
    if losses[0] is None:
        return None
    tokens = [sum(map(len, part.prompt_ids + part.completion_ids)) for part in batch.by_prompt()]
    return sum(loss * count for loss, count in zip(losses, tokens, strict=True)) / sum(tokens)


def packed_scores(
    model: nn.Module,
    packed: PackedBatch,
    temperature: float,
    with_aux_loss: bool = False,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Computes log-probabilities of a packed row; for the shared-prompt layout, [`attach`] must have prepared the
    model.

    Args:
        model: A causal LM whose attention goes through transformers' interface.
        packed ([`PackedBatch`]): The micro-batch; with all its tokens if `with_aux_loss`.
        temperature (`float`): The temperature at which the completions were sampled.
        with_aux_loss (`bool`): Also return the router's auxiliary loss.
        entropy_gradient (`bool`): Whether the entropies have a gradient.

    Returns:
        [`TokenScores`] with entropies, with the shapes of the padded layout; 0 where no token is scored.
    """
    head = unwrap(model).get_output_embeddings()
    vocab_size = unwrap(model).config.get_text_config().vocab_size
    inputs = packed_inputs(model, packed, with_aux_loss)
    with scoring_head(head, packed.targets, temperature, vocab_size, entropy_gradient, packed.kept):
        outputs = model(**inputs)
    logps, entropy = outputs.logits[0].unbind(dim=1)
    aux_loss = outputs.aux_loss if with_aux_loss else None
    entropy = entropy if entropy_gradient else entropy.detach()
    return TokenScores(packed.to_padded(logps), packed.to_padded(entropy), aux_loss)


def packed_inputs(model: nn.Module, packed: PackedBatch, with_aux_loss: bool) -> dict[str, Any]:
    """The arguments of a model's forward in the shared-prompt layout."""
    inputs = {
        "input_ids": packed.input_ids,
        "position_ids": packed.position_ids,
        "logits_to_keep": packed.predictors,
        "use_cache": False,
        **packed.attention_inputs(),
    }
    if "output_router_logits" in forward_arguments(model):
        inputs["output_router_logits"] = with_aux_loss
    if with_aux_loss:
        inputs["router_token_weights"] = packed.multiplicity
    elif takes_read_tokens(model) and pays_off(next(model.parameters()), packed.layout.longest_context):
        inputs |= {"read_tokens": packed.read, "logits_to_keep": packed.read_predictors}
    return inputs
