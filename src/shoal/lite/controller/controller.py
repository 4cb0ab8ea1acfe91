"""The controller of a cluster: takes wishes one after the other and makes them records.

Rules of this file:
- A record counts once it is on the disk; only then is it applied, and only then do listeners
  and the one who wished for it hear of it.
- A wish that is refused leaves no trace.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.lite.controller.records import ClusterRecord, Record
from shoal.lite.controller.state import ClusterState
from shoal.lite.controller.storage import MetadataStorage
from shoal.model.errors import SystemFailure

Listener = Callable[[Record], None]
# A wish: what to write, given the state as it is.
Command = Callable[[ClusterState], Sequence[Record]]

# With one controller there is one term, for good.
_EPOCH = 0


class Controller:
    """The state of the cluster, and the only way to change it."""

    def __init__(self, folder: Path, cluster_id: str) -> None:
        """Open the metadata log in `folder`; a new one begins with the cluster's id."""
        self.state = ClusterState()
        self._listeners: list[Listener] = []
        self._storage = MetadataStorage(folder)
        for record in self._storage.read_all():
            self.state.apply(record)
        if self._storage.is_empty:
            self._commit([ClusterRecord(cluster_id)])
        elif self.state.cluster_id != cluster_id:
            self._storage.close()
            raise SystemFailure(
                f"the metadata in {folder} is of cluster {self.state.cluster_id}, "
                f"not of {cluster_id}"
            )

    def listen(self, listener: Listener) -> None:
        """Hear of every record from now on, after it was applied."""
        self._listeners.append(listener)

    async def submit(self, command: Command) -> list[Record]:
        """Make a wish true. Returns its records once they count; `Refused` if it cannot be."""
        records = list(command(self.state))
        if records:
            self._commit(records)
        return records

    def _commit(self, records: Sequence[Record]) -> None:
        self._storage.append(records, epoch=_EPOCH, now_ms=time.time_ns() // 1_000_000)
        for record in records:
            self.state.apply(record)
            for listener in self._listeners:
                listener(record)

    def close(self) -> None:
        self._storage.close()
