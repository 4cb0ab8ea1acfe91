"""Writes the ledgers of one worker.

Rules:
- One recorder for one (worker, epoch). Several producers or consumers of that worker share it, in
  one event loop.
- A reservation is durable before `reserve` returns: only then may its numbers be sent.
- `seal` returns when every row appended before the call is durable and committed: only then may a
  caller act on those rows (commit an offset, report a lane as drained).
"""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shoal.model.errors import LedgerError
from shoal.workload.control import Commit, await_commit
from shoal.workload.record.ledger import LedgerWriter

# The order in which tables are sealed: a table comes before those that refer to it.
_SEAL_ORDER = (
    "assignments",
    "transactions",
    "keys",
    "attempts",
    "receipts",
    "polls",
    "markers",
    "manifests",
    "scans",
    "log",
    "control_ranges",
    "batches",
    "positions",
)

# With more unsealed rows than this, something is wrong with the disk or the driver.
MAX_UNSEALED_ROWS = 20_000_000


class Recorder:
    """The ledgers of one worker, open for writing."""

    def __init__(
        self,
        place: Path | str,
        *,
        worker: str,
        epoch: int,
        commit: Commit,
        seal_interval_s: float = 1.0,
    ) -> None:
        """`place` is the run's folder, or the URL of its segments."""
        self.worker = worker
        self.epoch = epoch
        self._commit = commit
        self._seal_interval_s = seal_interval_s
        self._sealed_at_s = time.monotonic()
        self._writers = {
            table: LedgerWriter(
                place, worker=worker, epoch=epoch, table=table, commit=self._commit_as_worker
            )
            for table in _SEAL_ORDER
        }

    async def _commit_as_worker(self, line: dict[str, Any]) -> None:
        kind = line.pop("kind")
        await await_commit(
            self._commit({"kind": kind, "worker": self.worker, "epoch": self.epoch, **line})
        )

    async def reserve(
        self, producer: str, topic: str, *, lanes: Iterable[int], until: int, incarnation: int
    ) -> None:
        """Commit that sequences below `until` of these lanes may be sent from now on."""
        line = {"kind": "reserve", "producer": producer, "incarnation": incarnation}
        line |= {"topic": topic, "until": until}
        await asyncio.gather(*(self._commit_as_worker({**line, "lane": lane}) for lane in lanes))

    async def record_foreign(self, cluster: str, count: int) -> None:
        """Commit how many records of that cluster were not messages of this run."""
        if count:
            await self._commit_as_worker({"kind": "foreign", "cluster": cluster, "count": count})

    def append(self, table: str, **columns: Any) -> None:
        """Add a group of rows; columns are arrays, single values, or `rows.Names`."""
        writer = self._writers[table]
        if writer.unsealed_rows > MAX_UNSEALED_ROWS:
            raise LedgerError(
                f"cannot seal {writer.unsealed_rows} rows of table {table} fast enough"
            )
        writer.append(**columns)

    async def seal(self) -> None:
        """Seal all tables."""
        self._sealed_at_s = time.monotonic()
        for writer in self._writers.values():
            await writer.seal()

    def is_seal_due(self) -> bool:
        """Whether the last seal started longer ago than the seal interval."""
        return time.monotonic() - self._sealed_at_s >= self._seal_interval_s
