# SPDX-License-Identifier: Apache-2.0
"""Chooses the layout in which a run computes log-probabilities.

`shared_prompt` works for every model whose attention goes through transformers' interface, with sliding windows or
without, and whose head maps hidden states directly to logits. The model's class and config are checked first, then
both layouts are tried on a few made-up completions and must agree, with each kernel of the device in turn. Other
models fall back to `padded`, or to `unpadded`, one pass per prompt, if padding itself changes what follows it (a
recurrence that it goes through). A model that was loaded with FlashAttention takes `varlen`, tried in the same way.
"""

import copy

import torch
from torch import nn
from transformers.utils import logging

from .introspection import forward_arguments, quantisation, sliding_windows, unwrap, vocabulary_size
from .last_layer import attach_last_layer, detach_last_layer
from .logprobs import TokenScores, completion_scores, joined_scores, packed_scores
from .shared_prompt import ATTENTION_NAME, FLEX_NAME, attach, detach, kernels_for
from .token_batch import TokenBatch, made_up_batch
from .trial_batches import probe_batches
from .varlen import packed_for, takes_varlen

logger = logging.get_logger(__name__)

LAYOUTS = ("shared_prompt", "padded")
_PROBE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # in nats
_IN_REDUCED_PRECISION = 0.25


def score_completions(
    model: nn.Module,
    batch: TokenBatch,
    temperature: float,
    layout: str,
    with_entropy: bool = False,
    with_aux_loss: bool = False,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Computes the log-probabilities of a micro-batch in one of the layouts; both give the same numbers.

    Args:
        model: A causal LM; for `shared_prompt` and `varlen`, one that [`choose_layout`] accepted for it.
        batch ([`TokenBatch`]): The completions, their prompts, and the sets that the tokens were drawn from, if
            sampling was truncated: log-probabilities and entropies are those over the sets.
        temperature (`float`): The temperature at which the completions were sampled.
        layout (`str`): `"shared_prompt"`, `"padded"`, `"unpadded"` or `"varlen"`.
        with_entropy (`bool`), with_aux_loss (`bool`): Additional outputs to return.
        entropy_gradient (`bool`): Whether the entropies have a gradient, which takes extra time.

    Returns:
        [`TokenScores`] with the shapes of the padded layout; 0 at tokens that are not scored.
    """
    if layout == "padded":
        return _padded_scores(model, batch, temperature, with_entropy, with_aux_loss, entropy_gradient)
    if layout == "unpadded":
        parts = [
            _padded_scores(model, part, temperature, with_entropy, with_aux_loss, entropy_gradient)
            for part in batch.by_prompt()
        ]
        return joined_scores(parts, batch)
    packed = packed_for(layout, batch, keep_last_tokens=with_aux_loss)
    return packed_scores(model, packed, temperature, with_aux_loss, entropy_gradient)


def _padded_scores(model: nn.Module, batch: TokenBatch, temperature: float, *options: bool) -> TokenScores:
    if batch.scored is None:
        return completion_scores(model, *batch.padded(), temperature, *options, kept=batch.padded_sets())
    places = [batch.scored_places(row) for row in range(len(batch))]
    return completion_scores(model, *batch.padded(), temperature, *options, places, batch.scored_sets())


def choose_layout(requested: str, model: nn.Module, with_aux_loss: bool) -> tuple[str, str | None]:
    """Prepares a model for the requested layout if the model supports it.

    Args:
        requested (`str`): `"shared_prompt"` or `"padded"`.
        model: The policy with unsharded weights, not yet wrapped by anything but peft.
        with_aux_loss (`bool`): Whether the run needs the router's auxiliary loss.

    Returns:
        `(layout, reason)`: The layout to use, and the reason if it is not the requested one.
    """
    if padding_matters(model):
        return "unpadded", "padding on the left changes what it computes for the tokens after it"
    if requested == "padded":
        return "padded", None
    reason = _structural_reason(model, with_aux_loss)
    if reason is not None:
        return "padded", reason
    if takes_varlen(model):
        reason = _difference(model, "varlen")
        name = unwrap(model).config.get_text_config()._attn_implementation
        return ("padded", reason) if reason else ("varlen", f"it was loaded with attn_implementation={name!r}")
    reason = _attached_reason(model)
    return ("shared_prompt", None) if reason is None else ("padded", reason)


def _attached_reason(model: nn.Module) -> str | None:
    """Attaches the first kernel with which the layout agrees with `padded`; the reason if none does."""
    reasons = {}
    attach_last_layer(model)
    for kernel in kernels_for(next(model.parameters()).device, unwrap(model).dtype):
        attach(model, kernel)
        reason = _difference(model, "shared_prompt")
        if reason is None:
            if FLEX_NAME in reasons:
                logger.warning("FlexAttention is not used, groups are attended to in turn: %s.", reasons[FLEX_NAME])
            return None
        reasons[kernel] = reason
    detach(model)
    detach_last_layer(model)
    return reasons[ATTENTION_NAME]


def _structural_reason(model: nn.Module, with_aux_loss: bool) -> str | None:
    base = unwrap(model)
    config = base.config.get_text_config()
    accepted = forward_arguments(model)
    if not getattr(base, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    left_by_a_trainer = (ATTENTION_NAME, FLEX_NAME)
    if config._attn_implementation not in (None, "sdpa", *left_by_a_trainer) and not takes_varlen(model):
        return f"it was loaded with attn_implementation={config._attn_implementation!r}, not 'sdpa'"
    if "logits_to_keep" not in accepted or base.get_output_embeddings() is None:
        return "its forward has no logits_to_keep, or its language-model head cannot be found"
    if sliding_windows(model) is None:
        others = ", ".join(sorted(set(config.layer_types) - {"full_attention", "sliding_attention"}))
        return f"some of its layers attend to neither the whole context nor a sliding window of it ({others})"
    if with_aux_loss and "router_token_weights" not in accepted:
        return "its router loss cannot count a prompt token once per completion (router_aux_loss_coef=0 leaves it out)"
    return None


@torch.no_grad()
def padding_matters(model: nn.Module) -> bool:
    """Whether a prompt that is padded on the left gets other log-probabilities than alone.

    Asked of models with layers that are not attention, whose states padding may go through; and tried with padding
    that no embedding of zeros hides, on biases that are not 0, since both may come with training.
    """
    if not _has_other_layers(model):
        return False
    batch = made_up_batch(vocabulary_size(model), next(model.parameters()).device)
    was_training = model.training
    model.eval()
    twin = copy.deepcopy(model)
    try:
        for parameter in twin.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1)
        embedding = unwrap(twin).get_input_embeddings()
        embedding.weight[0] = embedding.weight[-1]
        padded = score_completions(twin, batch, 1.0, "padded").logps
        alone = score_completions(twin, batch, 1.0, "unpadded").logps
    finally:
        model.train(was_training)
    difference = (padded - alone)[batch.padded()[3].bool()].abs().max().item()
    return not difference < _tolerance(model)


def _tolerance(model: nn.Module) -> float:
    """How far two layouts may be apart; quantised layers compute in a precision of their own."""
    exact = _PROBE_TOLERANCE.get(unwrap(model).dtype, _IN_REDUCED_PRECISION)
    return exact if quantisation(model) is None else _IN_REDUCED_PRECISION


def _has_other_layers(model: nn.Module) -> bool:
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    no_attention = getattr(config, "num_attention_heads", None) is None
    return no_attention or any("attention" not in kind or "linear" in kind for kind in kinds)


@torch.no_grad()
def _difference(model: nn.Module, layout: str) -> str | None:
    """Tries a layout and the padded one on made-up completions."""
    was_training = model.training
    model.eval()
    try:
        reasons = (_difference_on(batch, model, layout) for batch in probe_batches(model))
        return next((reason for reason in reasons if reason is not None), None)
    finally:
        model.train(was_training)


def _difference_on(batch: TokenBatch, model: nn.Module, layout: str) -> str | None:
    plain = score_completions(model, batch, 1.0, "padded", with_entropy=True)
    try:
        packed = packed_for(layout, batch)
        found = packed_scores(model, packed, 1.0)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        return f"trying it raised {type(error).__name__}: {str(error).splitlines()[0]}"
    if layout == "shared_prompt" and not packed.layout.saw(sliding_windows(model)):
        return "its sliding windows do not reach its attention as its config has them"
    mask = batch.padded()[3].bool()
    logps_differ, entropies_differ = found.logps - plain.logps, found.entropy - plain.entropy
    difference = torch.stack([logps_differ, entropies_differ])[:, mask].abs().max().item()
    if not difference < _tolerance(model):
        return f"trying it gave log-probabilities that differ from the padded layout's by {difference:.2g}"
    return None
