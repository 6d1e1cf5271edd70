# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: the kernels of a step, captured once and started together ever after.

A capture runs nothing. It records kernels with the addresses of all that they read and write, so what is captured must
be done before on the same tensors (kernels are loaded and libraries make their plans), and nothing may move later.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class CudaGraphs:
    """Captures on the current CUDA device. What graphs compute in between is in memory that they share, so what one
    returns holds until the next one is replayed."""

    def __init__(self):
        self.pool: Any = None

    def warm_up(self, work: Callable[[], T]) -> T:
        """Does what will be captured, on a stream of its own, as a capture does."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = work()
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        """Returns what replays the work, and then returns the tensors that it returned when it was captured."""
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = work()

        def replay() -> T:
            graph.replay()
            return result

        return replay
