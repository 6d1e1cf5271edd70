# SPDX-License-Identifier: Apache-2.0
"""Values of completions, in the plain padded layout.

The value of a token is the critic's estimate of the state before it: it is read at the token that predicts it, so the
first one at the last token of the prompt.
"""

import torch
from torch import Tensor, nn

from .signature import forward_arguments


def completion_values(
    critic: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor
) -> Tensor:
    """Returns the value of the state before each completion token.

    Args:
        critic: A token classifier of one label; left in its own train/eval mode.
        prompt_ids (`Tensor` of shape `(N, P)`): Prompts, padded on the left.
        prompt_mask (`Tensor` of shape `(N, P)`): 1 for real tokens.
        completion_ids (`Tensor` of shape `(N, C)`): Completions, padded on the right.
        completion_mask (`Tensor` of shape `(N, C)`): 1 for real tokens.

    Returns:
        `Tensor` of shape `(N, C)`, float32 or wider; arbitrary where padded.
    """
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1).long()
    inputs = {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "use_cache": False,
    }
    accepted = forward_arguments(critic)
    outputs = critic(**{name: value for name, value in inputs.items() if name in accepted})
    values = outputs.logits[:, -(completion_ids.shape[1] + 1) : -1, 0]
    return values if values.dtype == torch.float64 else values.float()
