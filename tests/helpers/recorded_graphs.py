# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs without CUDA: a recording of operations on tensors, which is replayed on the same tensors.

As on a GPU, a capture has no effect, nothing of the host runs in a replay, and what was recorded stays at its address:
weights that moved are not seen, and numbers of the host are what they were.
"""

import torch
from no_waits import waits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.tape, self.overwritten = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if waits(func, args, kwargs):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place] if place < len(args) else kwargs.get(argument.name)
                self.overwritten += [(each, each.clone()) for each in tree_leaves(given) if torch.is_tensor(each)]
        result = func(*args, **kwargs)
        # Detached, they stay where they are now: a parameter may be given other memory.
        self.tape.append((func, *tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs)), result))
        return result


class RecordedGraphs:
    """In place of `CudaGraphs`.

    Attributes:
        captures (`int`), replays (`int`): How many there were.
    """

    def __init__(self):
        self.captures = self.replays = 0

    def warm_up(self, work):
        return work()

    def capture(self, work):
        self.captures += 1
        recorder = _Recorder()
        with recorder:
            result = work()
        for tensor, before in reversed(recorder.overwritten):
            tensor.copy_(before)

        def replay():
            self.replays += 1
            for func, args, kwargs, recorded in recorder.tape:
                _overwrite(recorded, func(*args, **kwargs))
            return result

        return replay


def _overwrite(recorded, computed) -> None:
    for old, new in zip(tree_leaves(recorded), tree_leaves(computed), strict=True):
        if torch.is_tensor(old) and old.data_ptr() != new.data_ptr():
            old.copy_(new)
