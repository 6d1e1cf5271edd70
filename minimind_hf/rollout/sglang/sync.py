# SPDX-License-Identifier: Apache-2.0
"""How weights get to an SGLang server: the contract, and the way through a folder that both can read."""

import os
import shutil
import weakref
from abc import ABC, abstractmethod
from pathlib import Path

from torch import nn

from ..agreement import rank
from ..exported_weights import exported_config, exported_weights, write_weights
from .client import SGLangServer

_PREFIX = "weights-"


class WeightSync(ABC):
    """Sends the policy's weights, which are whole in every process, to servers. The first process does the work."""

    pushes_at_once = False  # whether weights can be pushed to several servers at the same time

    @abstractmethod
    def take(self, model: nn.Module, tag: str) -> None:
        """Prepares these weights for pushes under the name `tag`."""

    @abstractmethod
    def push(self, server: SGLangServer, tag: str) -> None:
        """Makes the server use the weights that were taken as `tag`. Safe to repeat.

        Raises:
            RolloutServerError: If the server does not accept them.
        """

    @abstractmethod
    def done(self, tag: str) -> None:
        """Releases what is no longer needed, because all servers have these weights."""

    @abstractmethod
    def close(self) -> None:
        """Releases everything."""


class DiskSync(WeightSync):
    """Writes a folder per sync, which gets its name when it is complete. The last one is kept for servers that are
    restarted.

    Args:
        folder (`str` or `Path`): Where to write. The servers read it under the same path. It belongs to one run at a
            time: what an earlier run left there is removed.
    """

    pushes_at_once = True

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()
        self._is_new = True
        self._taken: str | None = None

    def take(self, model: nn.Module, tag: str) -> None:
        if self._taken == tag:
            return  # a restarted server is sent the same folder
        if rank() == 0:
            self._write(model, tag)
        self._taken = tag

    def _write(self, model: nn.Module, tag: str) -> None:
        if self._is_new:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_others(tag)
            weakref.finalize(self, _remove_run, self.folder)
            self._is_new = False
        unfinished = self.folder / f"{_PREFIX}{tag}.part"
        unfinished.mkdir()
        write_weights(exported_weights(model), exported_config(model), unfinished)
        os.replace(unfinished, self._path(tag))

    def push(self, server: SGLangServer, tag: str) -> None:
        server.control(
            "/update_weights_from_disk",
            {
                "model_path": str(self._path(tag)),
                "weight_version": tag,
                "flush_cache": True,
                "abort_all_requests": False,
            },
        )

    def done(self, tag: str) -> None:
        if rank() == 0:
            self._remove_others(tag)

    def close(self) -> None:
        if rank() == 0 and not self._is_new:
            _remove_run(self.folder)

    def _path(self, tag: str) -> Path:
        return self.folder / f"{_PREFIX}{tag}"

    def _remove_others(self, tag: str) -> None:
        for path in self.folder.glob(f"{_PREFIX}*"):
            if path != self._path(tag):
                shutil.rmtree(path)


def _remove_run(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        shutil.rmtree(path)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
