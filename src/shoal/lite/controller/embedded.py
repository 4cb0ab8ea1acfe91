"""A controller inside another process, alone: its log is a file, and written is committed.

Rules of this file:
- A record counts once it is on the disk; only then do listeners and the one who asked hear of
  it.
- If it cannot be written the controller has failed for good: its state is ahead of its log.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from shoal.lite.controller.controller import Controller, ControllerSettings
from shoal.lite.controller.records import Record
from shoal.lite.controller.requests import Request
from shoal.lite.controller.state import ClusterState
from shoal.lite.controller.storage import MetadataStorage
from shoal.model.errors import SystemFailure

A = TypeVar("A")
Listener = Callable[[Record], None]

# With one controller there is one term, for good.
_EPOCH = 0


class EmbeddedController:
    """The state of the cluster, and the only way to change it."""

    def __init__(self, folder: Path, cluster_id: str, settings: ControllerSettings) -> None:
        """Open the metadata log in `folder`; a new one begins with the cluster's id."""
        self.state = ClusterState()
        self._listeners: list[Listener] = []
        self._has_failed = False
        self._storage = MetadataStorage(folder)
        for record in self._storage.read_all():
            self.state.apply(record)
        if self.state.cluster_id not in {"", cluster_id}:
            self._storage.close()
            raise SystemFailure(
                f"the metadata in {folder} is of cluster {self.state.cluster_id}, "
                f"not of {cluster_id}"
            )
        self._controller = Controller(self.state, settings)
        self._commit(self._controller.activate(_now_ms(), cluster_id).records)

    def listen(self, listener: Listener) -> None:
        """Hear of every record from now on, after it was applied."""
        self._listeners.append(listener)

    async def submit(self, request: Request[A]) -> A:
        """The answer, once what it is about is on the disk; `Refused` if it cannot be."""
        if self._has_failed:
            raise SystemFailure("the metadata could not be written")
        outcome = self._controller.handle(_now_ms(), request)
        self._commit(outcome.records)
        return outcome.answer

    def _commit(self, records: Sequence[Record]) -> None:
        if not records:
            return
        try:
            self._storage.append(records, epoch=_EPOCH, now_ms=time.time_ns() // 1_000_000)
        except BaseException:
            self._has_failed = True
            raise
        for record in records:
            for listener in self._listeners:
                listener(record)

    def close(self) -> None:
        self._storage.close()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
