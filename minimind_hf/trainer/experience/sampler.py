# SPDX-License-Identifier: Apache-2.0
"""Which prompts a process draws when: in training a pure function of (seed, epoch), in evaluation each prompt once."""

from collections.abc import Iterator
from itertools import count

from trl.trainer.utils import RepeatSampler


class RolloutSampler(RepeatSampler):
    """Draws prompts in chunks, and each chunk once per micro-batch that its rollout fills.

    The Trainer asks its data loader for one batch per micro-batch. A rollout fills several, so its prompts come
    several times in a row. The trainer makes the rollout at the first and takes the rest from its buffer, so that the
    Trainer can skip batches when it resumes. Prompts that do not fill a last rollout wait for the next epoch and its
    new order.

    Args:
        num_prompts (`int`): Prompts of the data set.
        chunk_size (`int`): Prompts of one rollout over all processes.
        repeats (`int`): Micro-batches that a rollout fills, over all its iterations.
        shuffle (`bool`): A new random order each epoch.
        seed (`int`): Seed of that order.

    Raises:
        ValueError: If there are fewer prompts than one rollout needs.
    """

    def __init__(self, num_prompts: int, chunk_size: int, repeats: int, shuffle: bool, seed: int):
        if num_prompts < chunk_size:
            raise ValueError(
                f"The train dataset has {num_prompts} prompts, but one rollout over all processes needs {chunk_size} "
                "(per_device_train_batch_size x steps_per_generation x processes / num_generations). Lower the batch "
                "size, raise num_generations or add prompts."
            )
        super().__init__(
            range(num_prompts),
            mini_repeat_count=1,
            batch_size=chunk_size,
            repeat_count=repeats,
            shuffle=shuffle,
            seed=seed,
        )
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:  # trl's own order depends on how often it was asked before
            self.generator.manual_seed(self.seed + self.epoch)
        yield from super().__iter__()


class StreamSampler:
    """Numbers of the prompts of a stream, as from [`RolloutSampler`], in order and without end.

    Args:
        chunk_size (`int`): Prompts of one rollout over all processes.
        repeats (`int`): Micro-batches that a rollout fills, over all its iterations.
    """

    def __init__(self, chunk_size: int, repeats: int):
        self._chunk_size, self._repeats = chunk_size, repeats

    def set_epoch(self, epoch: int) -> None:
        """The order of a stream is its own."""

    def __iter__(self) -> Iterator[int]:
        for start in count(0, self._chunk_size):
            for _ in range(self._repeats):
                yield from range(start, start + self._chunk_size)


def evaluation_batches(num_prompts: int, size: int, process: int, num_processes: int) -> list[list[int | None]]:
    """Returns the numbers of the prompts that a process evaluates.

    All processes get the same number of batches with the same number of prompts. Prompts that do not fill a last batch
    of all processes are spread over them, so that there are fewer stand-ins than processes.

    Args:
        num_prompts (`int`): Prompts of the data set.
        size (`int`): Prompts per batch of one process.
        process (`int`): Number of the process.

    Returns:
        `list[list[int | None]]`: Batches. `None` is a stand-in, only in the last batch and after its prompts.
    """
    batches = []
    for start in range(0, num_prompts, size * num_processes):
        end = min(start + size * num_processes, num_prompts)
        share = -(-(end - start) // num_processes)
        own = range(start + process * share, min(start + (process + 1) * share, end))
        batches.append([*own, *[None] * (share - len(own))])
    return batches
