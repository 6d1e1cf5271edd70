# SPDX-License-Identifier: Apache-2.0
"""What makes the host wait for a GPU, told on a CPU by the operations that are called."""

import traceback
from collections.abc import Sequence
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# Operations whose result, or its shape, the host has to know
WAITING = {
    *(aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default),
    *(aten.masked_select.default, aten._unique.default, aten._unique2.default, aten.unique_dim.default),
    *(aten.unique_consecutive.default, aten.bincount.default, aten.argwhere.default),
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Methods that read a tensor on the host; most of them leave no operation behind on a CPU.
READING = {
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.__bool__),
    *(torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__contains__),
    *(torch.Tensor.nonzero, torch.nonzero, torch.masked_select, torch.unique, torch.equal, torch.Tensor.equal),
}


class Waits(Exception):
    """Names what would wait."""


def waits(func, args, kwargs) -> bool:
    """Whether an operation waits for a GPU."""
    if func in INDEXING:
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return func in WAITING


class _Operations(TorchDispatchMode):
    def __init__(self, allowed):
        super().__init__()
        self.allowed = allowed

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if waits(func, args, kwargs or {}) and not _is_called_by(self.allowed):
            raise Waits(f"{func} waits for the device")
        return func(*args, **kwargs or {})


class _Methods(TorchFunctionMode):
    def __init__(self, allowed):
        super().__init__()
        self.allowed = allowed

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in READING and not _is_called_by(self.allowed):
            raise Waits(f"{func.__name__} waits for the device")
        return func(*args, **kwargs or {})


def _is_called_by(files: Sequence[str]) -> bool:
    return bool(files) and any(frame.filename.endswith(tuple(files)) for frame in traceback.extract_stack(limit=12))


@contextmanager
def no_waits(allowed: Sequence[str] = ()):
    """Within it, whatever would wait for a GPU raises [`Waits`], unless a file with one of these names calls it."""
    with _Methods(allowed), _Operations(allowed):
        yield
