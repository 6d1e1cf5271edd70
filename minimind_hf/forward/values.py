# SPDX-License-Identifier: Apache-2.0
"""The critic's values of completions, in the same two layouts as the log-probabilities.

The value of a token is the critic's estimate for the state before it. It is read at the token that predicts it, so the
first value is read at the last token of the prompt.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .introspection import forward_arguments, quantisation, sliding_windows
from .shared_prompt import PackedBatch, attach, detach, kernels_for
from .token_batch import TokenBatch
from .trial_batches import probe_batches
from .varlen import packed_for, takes_varlen

# In parts of the distance between the lowest and the highest value.
_IN_REDUCED_PRECISION = 0.1
_PROBE_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}


def completion_values(critic: nn.Module, batch: TokenBatch, layout: str) -> Tensor:
    """Returns the value of the state before each completion token.

    Args:
        critic: A token classifier with one label; its train/eval mode is not changed. For `shared_prompt`, one that
            [`choose_values_layout`] accepted.
        batch ([`TokenBatch`]): The completions and their prompts.
        layout (`str`): `"shared_prompt"`, `"padded"`, `"unpadded"` or `"varlen"`.

    Returns:
        `Tensor` of shape `(N, C)`, float32 or wider; arbitrary at padding and at tokens that are not scored.
    """
    if layout == "padded":
        return _padded_values(critic, *batch.padded())
    if layout == "unpadded":
        parts = [_padded_values(critic, *part.padded()) for part in batch.by_prompt()]
        return torch.cat([F.pad(part, (0, batch.width - part.shape[1])) for part in parts])
    return _packed_values(critic, packed_for(layout, batch))


def choose_values_layout(layout: str, critic: nn.Module, attaches: bool) -> str:
    """Returns the policy's layout if the critic gives the same values in it, as tested on made-up completions.

    Args:
        layout (`str`): The policy's layout.
        critic: A token classifier with one label.
        attaches (`bool`): Whether the critic has its own attention, which must be attached to the layout.
    """
    if layout == "unpadded":
        return layout
    if layout == "padded" or sliding_windows(critic) is None:
        return "padded"
    if layout == "varlen":
        return layout if takes_varlen(critic) and _agrees(critic, layout) else "padded"
    if not attaches:
        return layout if _agrees(critic, layout) else "padded"
    for kernel in kernels_for(next(critic.parameters()).device, critic.dtype):
        attach(critic, kernel)
        if _agrees(critic, layout):
            return layout
    detach(critic)
    return "padded"


def _padded_values(
    critic: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor
) -> Tensor:
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1).long()
    inputs = {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        "use_cache": False,
    }
    accepted = forward_arguments(critic)
    outputs = critic(**{name: value for name, value in inputs.items() if name in accepted})
    return _at_least_float32(outputs.logits[:, -(completion_ids.shape[1] + 1) : -1, 0])


def _packed_values(critic: nn.Module, packed: PackedBatch) -> Tensor:
    outputs = critic(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        use_cache=False,
        **packed.attention_inputs(),
    )
    return packed.to_padded(_at_least_float32(outputs.logits[0, packed.predictors, 0]))


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


@torch.no_grad()
def _agrees(critic: nn.Module, layout: str) -> bool:
    was_training = critic.training
    critic.eval()
    try:
        return all(_agrees_on(batch, critic, layout) for batch in probe_batches(critic))
    finally:
        critic.train(was_training)


def _agrees_on(batch: TokenBatch, critic: nn.Module, layout: str) -> bool:
    plain = completion_values(critic, batch, "padded")
    try:
        packed_batch = packed_for(layout, batch)
        packed = _packed_values(critic, packed_batch)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return False  # for example if the classifier passes no extra arguments to its attention
    if layout == "shared_prompt" and not packed_batch.layout.saw(sliding_windows(critic)):
        return False
    mask = batch.padded()[3].bool()
    # A new head gives values near 0: what matters is the difference relative to their spread.
    spread = (plain[mask].max() - plain[mask].min()).item()
    difference = (packed - plain)[mask].abs().max().item()
    tolerance = _PROBE_TOLERANCE.get(critic.dtype, _IN_REDUCED_PRECISION)
    return difference <= (tolerance if quantisation(critic) is None else _IN_REDUCED_PRECISION) * spread
