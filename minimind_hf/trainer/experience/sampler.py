# SPDX-License-Identifier: Apache-2.0
"""The order of the prompts: in training a pure function of (seed, epoch), in evaluation each prompt once."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class RolloutSampler(Sampler[int]):
    """Yields prompts chunk by chunk, each chunk once per micro-batch that its rollout fills.

    The Trainer takes one batch from its data loader per micro-batch. A rollout fills several micro-batches, so its
    prompts are repeated that often. The trainer makes the rollout at the first repetition and then uses its buffer. In
    this way, the Trainer itself can skip batches on resume.

    Args:
        num_prompts (`int`): Prompts of the dataset.
        chunk_size (`int`): Prompts of one rollout over all processes.
        repeats (`int`): Micro-batches per rollout, over all its iterations.
        shuffle (`bool`): Use a new random order each epoch.
        seed (`int`): Seed of that order.

    Raises:
        ValueError: If there are fewer prompts than one rollout takes.
    """

    def __init__(self, num_prompts: int, chunk_size: int, repeats: int, shuffle: bool, seed: int):
        if num_prompts < chunk_size:
            raise ValueError(
                f"The train dataset has {num_prompts} prompts, but one rollout over all processes takes {chunk_size} "
                "(per_device_train_batch_size x steps_per_generation x processes / num_generations). Lower the batch "
                "size, raise num_generations or add prompts."
            )
        self.num_prompts = num_prompts
        self.chunk_size = chunk_size
        self.repeats = repeats
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_prompts // self.chunk_size * self.chunk_size * self.repeats

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.num_prompts))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.num_prompts, generator=generator).tolist()
        # Prompts that do not fill a last rollout are left out of this epoch; the next one has another order.
        for start in range(0, self.num_prompts - self.chunk_size + 1, self.chunk_size):
            for _ in range(self.repeats):
                yield from order[start : start + self.chunk_size]


def evaluation_batches(num_prompts: int, size: int, process: int, num_processes: int) -> list[list[int | None]]:
    """Returns the numbers of the prompts that a process evaluates.

    All processes get the same number of batches, with the same number of prompts in each. The prompts of an incomplete
    last batch are spread over the processes, so that there are fewer stand-ins than processes.

    Args:
        num_prompts (`int`): Prompts of the data set.
        size (`int`): Prompts per batch and process.
        process (`int`): Rank of this process, out of `num_processes`.

    Returns:
        `list[list[int | None]]`: Batches; `None` is a stand-in. Stand-ins occur only at the end of the last batch.
    """
    batches = []
    for start in range(0, num_prompts, size * num_processes):
        end = min(start + size * num_processes, num_prompts)
        share = -(-(end - start) // num_processes)
        own = range(start + process * share, min(start + (process + 1) * share, end))
        batches.append([*own, *[None] * (share - len(own))])
    return batches
