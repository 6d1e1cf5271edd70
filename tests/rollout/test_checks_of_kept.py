# SPDX-License-Identifier: Apache-2.0
"""Sets that an engine must not return."""

import numpy as np
import pytest
import torch
from naming import raises_naming

from minimind_hf.rollout import Rollout, SamplingParams, check_episodes, check_rollouts

TRUNCATED = SamplingParams(5, 1.0, (2,), top_p=0.9, top_k=7)
BITS = np.packbits(np.eye(10, dtype=np.uint8), axis=1, bitorder="little")


class MyEngine:
    pass


def rollout(kept, loss_mask=None):
    return Rollout([3, 4, 2], [-0.5, -1.0, -0.1], "stop", loss_mask, kept=kept)


def good():
    return [np.array([3, 5]), BITS[4] | BITS[9], np.array([2], dtype=np.int64)]


BAD = {
    "none": (None, ["kept", "top_k=7", "top_p=0.9", "min_p=0.0", "Rollout.kept"]),
    "another number": (good()[:2], [2, 3]),
    "no list": (np.zeros((3, 2), int), ["kept", "ndarray", 3]),
    "a list in it": ([[3], *good()[1:]], ["token 0", "list", "numpy array"]),
    "floats": ([np.array([3.0]), *good()[1:]], ["token 0", "float64", "integers"]),
    "two dimensions": ([np.array([[3]]), *good()[1:]], ["token 0", "(1, 1)", "one dimension"]),
    "outside": ([np.array([3, 10]), *good()[1:]], ["from 2 to 10", "vocabulary of 10"]),
    "bits of another vocabulary": ([good()[0], np.zeros(3, np.uint8), good()[2]], ["3 bytes", 10]),
    "without the token": ([good()[0], BITS[9], good()[2]], ["token 1", "id 4", "kept"]),
    "a token without a set": ([good()[0], good()[1], np.empty(0, np.int32)], ["token 2", "id 2", "kept"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sets_are_refused(case):
    kept, named = BAD[case]
    for check in (
        lambda rollouts: check_rollouts(rollouts, 2, 10, MyEngine(), 5, TRUNCATED),
        lambda rollouts: check_episodes(rollouts, 2, 10, MyEngine(), TRUNCATED),
    ):
        with raises_naming(ValueError, "MyEngine", "index 1", *named):
            check([rollout(good()), rollout(kept)])


def test_good_sets_pass():
    check_rollouts([rollout(good())], 1, 10, MyEngine(), 5, TRUNCATED)
    check_rollouts([rollout(good())], 1, 10, MyEngine())  # an engine may cut on its own
    check_rollouts([rollout(None)], 1, 10, MyEngine(), 5, SamplingParams(5, 1.0, (2,)))
    nothing = np.empty(0, np.int32)
    check_rollouts([rollout([good()[0], nothing, good()[2]], [1, 0, 1])], 1, 10, MyEngine(), 5, TRUNCATED)
    assert torch.tensor(BITS[4]).tolist() == [16, 0]
