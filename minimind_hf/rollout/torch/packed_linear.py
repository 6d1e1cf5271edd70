# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose weights are packed once and used many times.

On a CPU a decode step consists of products of a few rows with large matrices. oneDNN multiplies with a matrix in its
own blocked layout two to four times as fast as `F.linear` with a plain one (which for float32 uses MKL). On other
devices, and if this torch has no oneDNN for the dtype, the layer is `F.linear`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """`x @ weight.T + bias` for matrices `x` with any number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.bias = bias
        self.packed = can_pack(weight.device, weight.dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.packed else weight.clone()

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


class Packer:
    """Makes packed layers of one dtype. Weights are joined and converted in one buffer, which all layers share."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.buffer = torch.empty(0, dtype=dtype)

    def pack(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None] = (), scale: Tensor | None = None
    ) -> PackedLinear:
        """Makes one layer from several, whose outputs follow one another.

        Args:
            weights (`Sequence[Tensor]`): Each of shape `(outputs, inputs)`, all with the same inputs.
            biases (`Sequence[Tensor | None]`): One per weight, or none at all.
            scale (`Tensor` of shape `(inputs,)`, *optional*): Factor of the inputs.
        """
        return PackedLinear(self._join(weights, scale), self._join_biases(weights, biases))

    def _join(self, weights: Sequence[Tensor], scale: Tensor | None) -> Tensor:
        first = weights[0].detach()
        if len(weights) == 1 and scale is None and first.dtype == self.dtype and first.is_contiguous():
            return first
        rows, columns = sum(weight.shape[0] for weight in weights), first.shape[1]
        if self.buffer.numel() < rows * columns or self.buffer.device != first.device:
            self.buffer = torch.empty(rows * columns, dtype=self.dtype, device=first.device)
        joined = self.buffer[: rows * columns].view(rows, columns)
        for part, weight in zip(joined.split([weight.shape[0] for weight in weights]), weights, strict=True):
            if scale is None:
                part.copy_(weight.detach())
            else:
                torch.mul(weight.detach(), scale, out=part)
        return joined

    def _join_biases(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
        if all(bias is None for bias in biases):
            return None
        parts = [
            torch.zeros(weight.shape[0], dtype=self.dtype, device=weight.device) if bias is None else bias.detach()
            for weight, bias in zip(weights, biases, strict=True)
        ]
        return torch.cat([part.to(self.dtype) for part in parts])
