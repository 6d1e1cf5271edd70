# SPDX-License-Identifier: Apache-2.0
"""Tolerances by dtype, and ragged random batches to compare implementations on."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def close(dtype):
    """Asserts equality to 1e-9 in float64 and 1e-5 in float32, and that the dtype was kept."""
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5

    def check(actual: Tensor, expected) -> None:
        assert actual.dtype == dtype
        expected = torch.as_tensor(expected, dtype=dtype)
        torch.testing.assert_close(actual.detach(), expected, rtol=tolerance, atol=tolerance)

    return check


@dataclass
class Batch:
    """A ragged batch of log-probabilities: row 2 is masked out as a whole, some masks have holes."""

    logps: Tensor
    old_logps: Tensor
    ref_logps: Tensor
    advantages: Tensor
    mask: Tensor


@pytest.fixture(params=range(3))
def batch(request) -> Batch:
    generator = torch.Generator().manual_seed(request.param)
    rows, width = 8, 7

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    lengths[2] = 0
    mask = torch.arange(width) < lengths[:, None]
    mask &= torch.rand(rows, width, generator=generator) > 0.2
    logps = normal(rows, width) - 2
    return Batch(
        logps=logps.requires_grad_(),
        old_logps=logps.detach() + 0.4 * normal(rows, width),
        ref_logps=logps.detach() + 0.6 * normal(rows, width),
        advantages=normal(rows),
        mask=mask,
    )
