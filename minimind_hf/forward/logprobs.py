# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of completions, in the plain padded layout: prompts padded left, completions padded right.

The log-probabilities are those of the sampling distribution: logits are divided by the sampling temperature, in
float32, wherever they are scored (policy, reference, critic's policy). This layout is the reference that every faster
one is tested against.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from .signature import forward_arguments


@dataclass
class TokenScores:
    """What one forward pass says about the tokens of N completions.

    Args:
        logps (`Tensor` of shape `(N, C)`): Log-probability of each completion token; arbitrary where padded.
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
) -> TokenScores:
    """Scores completions behind their prompts.

    Args:
        model: A causal LM of any architecture; left in its own train/eval mode.
        prompt_ids (`Tensor` of shape `(N, P)`): Prompts, padded on the left.
        prompt_mask (`Tensor` of shape `(N, P)`): 1 for real tokens.
        completion_ids (`Tensor` of shape `(N, C)`): Completions, padded on the right.
        completion_mask (`Tensor` of shape `(N, C)`): 1 for real tokens.
        temperature (`float`): The sampling temperature that the completions were drawn at.
        with_entropy (`bool`): Also return the entropies (without gradient).
        with_aux_loss (`bool`): Also return the router's auxiliary loss (mixture-of-experts models only).

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
    logits = outputs.logits[:, -num_logits:-1].float() / temperature
    entropy = None
    if with_entropy:
        with torch.no_grad():
            entropy = entropy_from_logits(logits)
    aux_loss = outputs.aux_loss if with_aux_loss else None
    return TokenScores(selective_log_softmax(logits, completion_ids), entropy, aux_loss)
