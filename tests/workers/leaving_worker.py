# SPDX-License-Identifier: Apache-2.0
"""Pairs of processes that end while gloo still holds tensors of theirs; prints how each ended."""

import sys

import torch
import torch.distributed as dist
from launching import fork, wait

import minimind_hf  # noqa: F401 - what is under test


def exchange(rank: int) -> None:
    dist.init_process_group("gloo")
    for _ in range(5):  # not waited for, so that gloo is the last to hold their tensors
        dist.all_gather_into_tensor(torch.empty(2000), torch.ones(1000, requires_grad=True).detach(), async_op=True)


def end_pair() -> list[int]:
    children = fork(exchange, 2, leave=sys.exit)  # as a script ends, in which Python shuts down
    statuses = wait(children, timeout=60)
    return [statuses[child] for child in children]


if __name__ == "__main__":
    torch.set_num_threads(1)  # no threads of its own, so that forking is safe
    print([end_pair() for _ in range(int(sys.argv[1]))])
