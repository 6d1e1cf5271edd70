# SPDX-License-Identifier: Apache-2.0
"""Made-up completions to try a layout on before a run takes it: short ones, and long enough for every kernel and for
the sliding windows of the model.
"""

from torch import nn

from .block_attention import LONG_CONTEXT
from .introspection import context_length, sliding_windows, vocabulary_size
from .token_batch import TokenBatch, made_up_batch

_LONGEST_WINDOW = 1024  # tokens: longer prompts than this would take longer than the trial is worth


def probe_batches(model: nn.Module) -> list[TokenBatch]:
    """Returns a short batch and, where long contexts are computed another way and fit into the model, long ones.

    Args:
        model (`nn.Module`): A causal LM or a token classifier with whole weights.
    """
    device, vocab_size = next(model.parameters()).device, vocabulary_size(model)
    batches = [made_up_batch(vocab_size, device)]
    windows = {window for window in sliding_windows(model) or [] if window is not None}
    lengths = [window + 8 for window in windows if window <= _LONGEST_WINDOW]
    if device.type == "cpu":
        lengths.append(LONG_CONTEXT)
    context = context_length(model)
    fitting = [length for length in lengths if context is None or context >= length + batches[0].width]
    return batches + [made_up_batch(vocab_size, device, prompt_length=length) for length in fitting]
