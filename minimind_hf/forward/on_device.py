# SPDX-License-Identifier: Apache-2.0
"""What the host knows, as tensors on a device, without waiting for the device.

`torch.tensor(numbers, device="cuda")` waits until the device has done everything that it was asked before. A copy from
page-locked memory only joins the queue; torch does not use that memory again before the copy is done.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def on_device(numbers: Sequence | np.ndarray, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Returns a tensor of numbers (or lists of them, or an array) on a device."""
    return to_device(torch.as_tensor(numbers, dtype=dtype), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host on a device; one that is there already is returned itself."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
