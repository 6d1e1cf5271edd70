# SPDX-License-Identifier: Apache-2.0
"""Chooses the layout in which a run computes log-probabilities.

`shared_prompt` works for every model whose attention goes through transformers' interface and whose head maps hidden
states directly to logits. The model's class and config are checked first, then both layouts are tried on a few made-up
completions and must agree. Other models fall back to `padded`.
"""

import torch
from torch import nn

from .introspection import forward_arguments, unwrap
from .logprobs import TokenScores, completion_scores, shared_prompt_scores
from .shared_prompt import ATTENTION_NAME, attach, detach, pack
from .token_batch import TokenBatch, made_up_batch

LAYOUTS = ("shared_prompt", "padded")
_PROBE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # in nats; reduced precision: 0.25


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
        model: A causal LM; for `shared_prompt`, one that [`choose_layout`] accepted.
        batch ([`TokenBatch`]): The completions and their prompts.
        temperature (`float`): The temperature at which the completions were sampled.
        layout (`str`): `"shared_prompt"` or `"padded"`.
        with_entropy (`bool`), with_aux_loss (`bool`): Additional outputs to return.
        entropy_gradient (`bool`): Whether the entropies have a gradient, which takes extra time.

    Returns:
        [`TokenScores`] with the shapes of the padded layout.
    """
    if layout == "padded":
        return completion_scores(model, *batch.padded(), temperature, with_entropy, with_aux_loss, entropy_gradient)
    packed = pack(batch, keep_last_tokens=with_aux_loss)
    return shared_prompt_scores(model, packed, temperature, with_aux_loss, entropy_gradient)


def choose_layout(requested: str, model: nn.Module, with_aux_loss: bool) -> tuple[str, str | None]:
    """Prepares a model for the requested layout if the model supports it.

    Args:
        requested (`str`): `"shared_prompt"` or `"padded"`.
        model: The policy with unsharded weights, not yet wrapped by anything but peft.
        with_aux_loss (`bool`): Whether the run needs the router's auxiliary loss.

    Returns:
        `(layout, reason)`: The layout to use, and the reason if it is not the requested one.
    """
    if requested == "padded":
        return "padded", None
    reason = _structural_reason(model, with_aux_loss)
    if reason is None:
        attach(model)
        reason = _difference(model)
        if reason is not None:
            detach(model)
    return ("shared_prompt", None) if reason is None else ("padded", reason)


def _structural_reason(model: nn.Module, with_aux_loss: bool) -> str | None:
    base = unwrap(model)
    config = base.config.get_text_config()
    accepted = forward_arguments(model)
    if not getattr(base, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    if config._attn_implementation not in (None, "sdpa", ATTENTION_NAME):  # the last one is left by an earlier trainer
        return f"it was loaded with attn_implementation={config._attn_implementation!r}, not 'sdpa'"
    if "logits_to_keep" not in accepted or base.get_output_embeddings() is None:
        return "its forward has no logits_to_keep, or its language-model head cannot be found"
    other_layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if other_layers or getattr(config, "sliding_window", None):
        kinds = ", ".join(sorted(other_layers)) or "sliding_window"
        return f"some of its layers do not attend to the whole context ({kinds})"
    if with_aux_loss and "router_token_weights" not in accepted:
        return "its router loss cannot count a prompt token once per completion (router_aux_loss_coef=0 leaves it out)"
    return None


@torch.no_grad()
def _difference(model: nn.Module) -> str | None:
    """Tries both layouts on made-up completions."""
    batch = made_up_batch(unwrap(model).config.get_text_config().vocab_size, next(model.parameters()).device)
    was_training = model.training
    model.eval()
    plain = score_completions(model, batch, 1.0, "padded", with_entropy=True)
    try:
        shared = score_completions(model, batch, 1.0, "shared_prompt")
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        return f"trying it raised {type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        model.train(was_training)
    mask = batch.padded()[3].bool()
    logps_differ, entropies_differ = shared.logps - plain.logps, shared.entropy - plain.entropy
    difference = torch.stack([logps_differ, entropies_differ])[:, mask].abs().max().item()
    if not difference < _PROBE_TOLERANCE.get(unwrap(model).dtype, 0.25):
        return f"trying it gave log-probabilities that differ from the padded layout's by {difference:.2g}"
    return None
