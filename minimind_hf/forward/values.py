# SPDX-License-Identifier: Apache-2.0
"""The critic's values of completions, in the same two layouts as the log-probabilities.

The value of a token is the critic's estimate for the state before it. It is read at the token that predicts it, so the
first value is read at the last token of the prompt.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .introspection import forward_arguments
from .probes import probe_batches
from .shared_prompt import PackedBatch, attach, detach, pack
from .token_batch import TokenBatch

# In parts of the distance between the lowest and the highest value; reduced precision: 0.1.
_PROBE_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}


def completion_values(critic: nn.Module, batch: TokenBatch, layout: str) -> Tensor:
    """Returns the value of the state before each completion token.

    Args:
        critic: A token classifier with one label; its train/eval mode is not changed. For `shared_prompt`, one that
            [`choose_values_layout`] accepted.
        batch ([`TokenBatch`]): The completions and their prompts.
        layout (`str`): `"shared_prompt"`, `"padded"` or `"unpadded"`.

    Returns:
        `Tensor` of shape `(N, C)`, float32 or wider; arbitrary at padding and at tokens that are not scored.
    """
    if layout == "padded":
        return _padded_values(critic, *batch.padded())
    if layout == "unpadded":
        parts = [_padded_values(critic, *part.padded()) for part in batch.by_prompt()]
        return torch.cat([F.pad(part, (0, batch.width - part.shape[1])) for part in parts])
    return _packed_values(critic, pack(batch))


def choose_values_layout(layout: str, critic: nn.Module, attaches: bool) -> str:
    """Returns the policy's layout if the critic gives the same values in it, as tested on made-up completions.

    Args:
        layout (`str`): The policy's layout.
        critic: A token classifier with one label.
        attaches (`bool`): Whether the critic has its own attention, which must be attached to the layout.
    """
    if layout == "unpadded":
        return layout
    if layout == "padded" or not _attends_to_everything(critic.config.get_text_config()):
        return "padded"
    if attaches:
        attach(critic)
    if _agrees(critic):
        return layout
    if attaches:
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
        # A mask with four dimensions is used as it is; the attention of this layout builds its own.
        attention_mask=packed.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool),
        shared_prompt=packed.groups,
        use_cache=False,
    )
    return packed.to_padded(_at_least_float32(outputs.logits[0, packed.predictors, 0]))


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _attends_to_everything(config) -> bool:
    other_layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    return not other_layers and not getattr(config, "sliding_window", None)


@torch.no_grad()
def _agrees(critic: nn.Module) -> bool:
    was_training = critic.training
    critic.eval()
    try:
        return all(_agrees_on(batch, critic) for batch in probe_batches(critic))
    finally:
        critic.train(was_training)


def _agrees_on(batch: TokenBatch, critic: nn.Module) -> bool:
    plain = completion_values(critic, batch, "padded")
    try:
        packed = completion_values(critic, batch, "shared_prompt")
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return False  # for example if the classifier passes no extra arguments to its attention
    mask = batch.padded()[3].bool()
    # A new head gives values near 0: what matters is the difference relative to their spread.
    spread = (plain[mask].max() - plain[mask].min()).item()
    difference = (packed - plain)[mask].abs().max().item()
    return difference <= _PROBE_TOLERANCE.get(critic.dtype, 0.1) * spread
