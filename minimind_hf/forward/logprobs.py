# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of completions, in two layouts.

The log-probabilities are those of the sampling distribution: for the policy and the reference alike, logits are
divided by the sampling temperature in float32. `padded` is the plain layout, with prompts padded on the left and
completions padded on the right. The fast layout, `shared_prompt`, is tested against it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from .introspection import forward_arguments, unwrap
from .scoring_head import scoring_head
from .shared_prompt import PackedBatch


@dataclass
class TokenScores:
    """The results of one forward pass for the tokens of N completions.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probability of each completion token; arbitrary at padding.
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

    Returns:
        [`TokenScores`]
    """
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1).long()
    num_logits = completion_ids.shape[1] + 1  # the last prompt token predicts the first completion token
    inputs = {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "logits_to_keep": num_logits,
        "use_cache": False,
        "output_router_logits": with_aux_loss,
    }
    accepted = forward_arguments(model)
    inputs = {name: value for name, value in inputs.items() if name in accepted}
    outputs = model(**inputs)
    logits = outputs.logits[:, -num_logits:-1]
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    entropy = None
    with torch.autocast(logits.device.type, enabled=False):
        if with_entropy:
            with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
                entropy = entropy_from_logits(logits)
        logps = selective_log_softmax(logits, completion_ids)
    return TokenScores(logps, entropy, outputs.aux_loss if with_aux_loss else None)


def shared_prompt_scores(
    model: nn.Module,
    packed: PackedBatch,
    temperature: float,
    with_aux_loss: bool = False,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Computes log-probabilities in the shared-prompt layout; [`attach`] must have prepared the model.

    Args:
        model: A causal LM whose attention goes through transformers' interface.
        packed ([`PackedBatch`]): The micro-batch; with all its tokens if `with_aux_loss`.
        temperature (`float`): The temperature at which the completions were sampled.
        with_aux_loss (`bool`): Also return the router's auxiliary loss.
        entropy_gradient (`bool`): Whether the entropies have a gradient.

    Returns:
        [`TokenScores`] with entropies, with the shapes of the padded layout; 0 where there is no token.
    """
    head = unwrap(model).get_output_embeddings()
    vocab_size = unwrap(model).config.get_text_config().vocab_size
    inputs = {
        "input_ids": packed.input_ids,
        "position_ids": packed.position_ids,
        # A mask with four dimensions is used as it is; the attention of this layout builds its own.
        "attention_mask": packed.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
        "shared_prompt": packed.groups,
        "logits_to_keep": packed.predictors,
        "use_cache": False,
    }
    if "output_router_logits" in forward_arguments(model):
        inputs["output_router_logits"] = with_aux_loss
    if with_aux_loss:
        inputs["router_token_weights"] = packed.token_weights
    with scoring_head(head, packed.targets, temperature, vocab_size, entropy_gradient):
        outputs = model(**inputs)
    logps, entropy = outputs.logits[0].unbind(dim=1)
    aux_loss = outputs.aux_loss if with_aux_loss else None
    entropy = entropy if entropy_gradient else entropy.detach()
    return TokenScores(packed.to_padded(logps), packed.to_padded(entropy), aux_loss)
