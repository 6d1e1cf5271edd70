# SPDX-License-Identifier: Apache-2.0
"""Made-up completions to try a layout on before a run takes it: short ones, and long enough for every kernel."""

from torch import nn

from .block_attention import LONG_CONTEXT
from .introspection import context_length, vocabulary_size
from .token_batch import TokenBatch, made_up_batch


def probe_batches(model: nn.Module) -> list[TokenBatch]:
    """Returns a short batch and, where long contexts are computed another way and fit into the model, a long one.

    Args:
        model (`nn.Module`): A causal LM or a token classifier with whole weights.
    """
    device, vocab_size = next(model.parameters()).device, vocabulary_size(model)
    batches = [made_up_batch(vocab_size, device)]
    context = context_length(model)
    if device.type == "cpu" and (context is None or context >= LONG_CONTEXT + batches[0].width):
        batches.append(made_up_batch(vocab_size, device, prompt_length=LONG_CONTEXT))
    return batches
