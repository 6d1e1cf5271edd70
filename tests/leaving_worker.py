# SPDX-License-Identifier: Apache-2.0
"""Pairs of processes that end while gloo still holds tensors of theirs; prints how each ended."""

import os
import socket
import sys

import torch
import torch.distributed as dist

import minimind_hf  # noqa: F401 - what is under test


def exchange(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for _ in range(5):  # not waited for, so that gloo is the last to hold their tensors
        dist.all_gather_into_tensor(torch.empty(2000), torch.ones(1000, requires_grad=True).detach(), async_op=True)


def end_pair() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            exchange(rank, port)
            sys.exit()  # as a script ends, in which Python shuts down
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    torch.set_num_threads(1)  # no threads of its own, so that forking is safe
    print([end_pair() for _ in range(int(sys.argv[1]))])
