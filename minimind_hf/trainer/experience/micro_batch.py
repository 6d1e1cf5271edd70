# SPDX-License-Identifier: Apache-2.0
"""Shuffled mini-batches out of one padded rollout."""

import numpy as np
import torch
from torch import Tensor

MicroBatch = dict[str, Tensor]


def mini_batch_rows(num_rows: int, size: int, seed: int, iteration: int) -> list[list[int]]:
    """Returns the rows of each mini-batch of one pass.

    Args:
        num_rows (`int`): Completions of the rollout.
        size (`int`): Completions of a mini-batch.
        seed (`int`): Of the rollout.
        iteration (`int`): Number of the pass. The order is a pure function of (seed, iteration).
    """
    order = np.random.default_rng([seed, iteration]).permutation(num_rows).tolist()
    # Within a mini-batch the order means nothing; completions of one prompt are kept together.
    return [sorted(order[start : start + size]) for start in range(0, num_rows, size)]


def select_rows(batch: MicroBatch, rows: list[int]) -> MicroBatch:
    """Returns some rows of a padded batch, with no more padding than they need."""
    index = torch.tensor(rows, device=batch["prompt_mask"].device)
    prompt_width = int(batch["prompt_mask"][index].sum(dim=1).max())
    width = int(batch["completion_mask"][index].sum(dim=1).max())

    def trimmed(name: str, tensor: Tensor) -> Tensor:
        tensor = tensor[index]
        if tensor.dim() == 1:
            return tensor
        start = tensor.shape[1] - prompt_width
        return (tensor[:, start:] if name.startswith("prompt_") else tensor[:, :width]).contiguous()

    return {name: trimmed(name, tensor) for name, tensor in batch.items()}


def put_rows(target: Tensor, rows: list[int], source: Tensor) -> None:
    """Writes what was computed for [`select_rows`] back to where these rows are, in place."""
    target[torch.tensor(rows, device=target.device), : source.shape[1]] = source
