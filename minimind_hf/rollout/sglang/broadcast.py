# SPDX-License-Identifier: Apache-2.0
"""How weights get to an SGLang server without a disk: the trainer broadcasts them in a process group with it.

The members of the group are the trainer's first process and the server's workers. It is independent of the groups of
the trainer's own processes. It is kept until it fails; then a new one is made.
"""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from transformers.utils import logging

from ..agreement import rank
from ..errors import RolloutServerError, ServerGoneError
from ..exported_weights import exported_weights
from .client import SGLangServer
from .sync import WeightSync

logger = logging.get_logger(__name__)

BUCKET_BYTES = 512 * 2**20  # the server needs this much memory beside its weights


@dataclass
class _Group:
    """The process group with one server.

    Args:
        server ([`SGLangServer`]): The other party.
        name (`str`): The name of the group on both sides.
        link (`dist.ProcessGroup`): This side of the group.
        store (`dist.TCPStore`): Where both sides meet; open as long as the group.
    """

    server: SGLangServer
    name: str
    link: dist.ProcessGroup
    store: dist.TCPStore


class DistributedSync(WeightSync):
    """Broadcasts the weights: with gloo from a CPU, with nccl from a GPU, which must not be the server's.

    Args:
        timeout (`float`): Seconds that a broadcast can take.
        keeps_sent (`bool`): Keep a copy of what was sent in CPU memory, for a server that is restarted after the
            policy has changed. Otherwise it is sent the policy's current weights.
    """

    def __init__(self, timeout: float, keeps_sent: bool = True):
        self.timeout, self._keeps_sent = timedelta(seconds=timeout), keeps_sent
        self._groups: dict[str, _Group] = {}
        self._weights: dict[str, Tensor] = {}
        self._device = torch.device("cpu")
        self._kept: str | None = None

    def take(self, model: nn.Module, tag: str) -> None:
        if rank() == 0 and self._kept != tag:
            self._kept = None
            self._weights = exported_weights(model)
            self._device = next(iter(self._weights.values())).device

    def push(self, server: SGLangServer, tag: str) -> None:
        is_old_group = server.url in self._groups
        try:
            self._push(server, tag)
        except RolloutServerError as error:
            self._leave(server)  # one side has continued without the other
            if not is_old_group or isinstance(error, ServerGoneError):
                raise
            # A restarted server does not know the group. If this was the cause, a new group works.
            self._push(server, tag)

    def _push(self, server: SGLangServer, tag: str) -> None:
        if server.url not in self._groups:
            self._groups[server.url] = self._join(server)
        group = self._groups[server.url]
        self._begin(server)
        for bucket in buckets(self._weights, BUCKET_BYTES):
            self._broadcast(group, bucket, tag)
        server.control("/end_weight_update", {})

    def done(self, tag: str) -> None:
        if not self._keeps_sent:
            self._weights = {}
        elif rank() == 0 and self._kept != tag:
            self._weights = {name: tensor.to("cpu", copy=True) for name, tensor in self._weights.items()}
            self._kept = tag

    def close(self) -> None:
        for group in list(self._groups.values()):
            self._leave(group.server)

    @staticmethod
    def _begin(server: SGLangServer) -> None:
        """Opens a session. A session that a failure left open is closed first."""
        try:
            server.control("/begin_weight_update", {})
        except RolloutServerError as error:
            try:
                server.control("/end_weight_update", {})
            except RolloutServerError:
                raise error from None  # no session is open, so this was not the cause
            server.control("/begin_weight_update", {})

    def _broadcast(self, group: _Group, bucket: dict[str, Tensor], tag: str) -> None:
        request = {
            "names": list(bucket),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in bucket.values()],
            "shapes": [list(tensor.shape) for tensor in bucket.values()],
            "group_name": group.name,
            "weight_version": tag,
            "flush_cache": True,
        }
        tensors = [tensor.to(self._device).contiguous() for tensor in bucket.values()]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(group.server.control, "/update_weights_from_distributed", request)
            sent = [group.link.broadcast(tensor, 0) for tensor in tensors]
            answer.result()  # first, because the broadcasts would wait for a server that refused
        for work in sent:
            work.wait()

    def _join(self, server: SGLangServer) -> _Group:
        device = self._device
        backend = "nccl" if device.type == "cuda" else "gloo"
        workers = int(server.get("/server_info").get("tp_size") or 1)
        address = _own_address(server.url)
        store = dist.TCPStore(address, 0, 1 + workers, True, self.timeout, wait_for_workers=False)
        name = f"minimind-hf-{uuid.uuid4().hex[:8]}"
        request = {
            "master_address": address,
            "master_port": store.port,
            "rank_offset": 1,
            "world_size": 1 + workers,
            "group_name": name,
            "backend": backend,
        }
        own_side = _InBackground(
            lambda: c10d._new_process_group_helper(
                1 + workers,
                0,
                [],
                dist.Backend(backend),
                dist.PrefixStore(name, store),
                group_name=name,
                timeout=self.timeout,
                device_id=device if device.type == "cuda" else None,
            )
        )
        server.control("/init_weights_update_group", request)  # fails at once, while the own side would wait
        link, _ = own_side.result()
        c10d._world.pg_group_ranks[link] = {number: number for number in range(1 + workers)}
        return _Group(server, name, link, store)

    def _leave(self, server: SGLangServer) -> None:
        """Ends the group on both sides, the server's first: this closes the connection on which a broadcast waits if
        the server does not take part."""
        if server.url not in self._groups:
            return
        group = self._groups.pop(server.url)
        try:
            server.control("/destroy_weights_update_group", {"group_name": group.name})
        except RolloutServerError as error:
            logger.info("The SGLang server %s did not leave the group %s: %s", server.url, group.name, error)
        dist.destroy_process_group(group.link)


class _InBackground:
    """Work in a thread, which is not waited for if its result is no longer needed."""

    def __init__(self, work: Callable[[], Any]):
        self._outcome: Future = Future()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._outcome.set_result(work())
        except Exception as error:
            self._outcome.set_exception(error)

    def result(self) -> Any:
        return self._outcome.result()


def buckets(weights: dict[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    """Splits tensors, in order, into parts of at most `limit` bytes. A larger tensor is a part by itself."""
    part, size = {}, 0
    for name, tensor in weights.items():
        if part and size + tensor.nbytes > limit:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    if part:
        yield part


def _own_address(url: str) -> str:
    """The address of this machine on the way to the server."""
    host = urlsplit(url).hostname
    family, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, only chooses the route
        return probe.getsockname()[0]
