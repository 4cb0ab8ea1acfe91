"""A replica's log in memory, with the semantics of Apache Kafka's batches and leader epochs.

Rules of this file:
- A batch is an object, and replicas share it. It knows the batch that was before it when its
  leader wrote it. So two logs that have the same batch have the same history, and whether they
  do is one comparison of references.
- Batches are read, written and cut whole.
- What is written survives the end of the process. What is not synced may be lost with the
  power: the tail, or the cut of a tail, so that it is back. Any tail may be lost by damage.
"""

from collections.abc import Callable, Sequence
from random import Random

from shoal.lite.simulation.errors import Violation
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import LogAppendInfo
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.producer_state import ProducerStates

# How likely the power goes before a cut of the log is on the disk.
_REVIVAL = 0.5
# How likely the kernel had written everything without a sync.
_ALL_KEPT = 0.3
_MAGIC = 2
# So that a batch of some records is large, and production waits for more of them.
_RECORD_BYTES = 8 * 1024


class SimulatedBatch:
    """Records that were written together, under one leader epoch."""

    __slots__ = ("base_offset", "count", "end_offset", "epoch", "header", "number", "parent")

    def __init__(
        self,
        number: int,
        header: BatchHeader,
        *,
        base_offset: int,
        epoch: int,
        parent: "SimulatedBatch | None",
    ) -> None:
        """`number` tells it apart from all others of a history."""
        self.number = number
        self.header = header
        self.base_offset = base_offset
        self.count = header.record_count
        self.end_offset = base_offset + self.count
        self.epoch = epoch
        self.parent = parent

    def __repr__(self) -> str:
        return f"#{self.number}@{self.base_offset}+{self.count}/e{self.epoch}"


def header_of(producer_id: int, base_sequence: int, count: int) -> BatchHeader:
    """The header of a batch as a producer sends it."""
    return BatchHeader(
        base_offset=0,
        batch_length=count * _RECORD_BYTES,
        leader_epoch=-1,
        magic=_MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
        record_count=count,
    )


class SimulatedLog:
    """What a replica has: one entry per offset, each the batch that the offset belongs to."""

    __slots__ = (
        "_on_write",
        "_revivable",
        "base_offset",
        "end_offset",
        "entries",
        "epochs",
        "new_batch",
        "offline_reason",
        "on_offline",
        "producers",
        "start_offset",
        "synced_end",
    )

    # Here nothing is lost but from the end.
    lacks_start = False

    def __init__(self, on_write: Callable[[], None]) -> None:
        """`on_write` is called after every write; the process may end in it."""
        self._on_write = on_write
        # Of the process that has it open: makes batches of producers, and hears of a failure.
        self.new_batch: Callable[[BatchHeader, int], SimulatedBatch]
        self.on_offline: Callable[[], None] = lambda: None
        self.offline_reason: str | None = None
        self.entries: list[SimulatedBatch] = []
        self.base_offset = 0
        self.start_offset = 0
        self.end_offset = 0
        self.epochs = EpochHistory()
        self.producers = ProducerStates()
        self.synced_end = 0
        # What the log was before it was cut, until that is synced.
        self._revivable: tuple[int, list[SimulatedBatch]] | None = None

    # Reading

    def at(self, offset: int) -> SimulatedBatch | None:
        """The batch of an offset that is in the log."""
        place = offset - self.base_offset
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def read(self, offset: int, most: int, upper_offset: int) -> list[SimulatedBatch]:
        """At most so many batches from the one that holds `offset`, all below `upper_offset`."""
        self._require_online()
        found: list[SimulatedBatch] = []
        while offset < upper_offset and len(found) < most:
            batch = self.entries[offset - self.base_offset]
            if batch.end_offset > upper_offset:
                break
            found.append(batch)
            offset = batch.end_offset
        return found

    # Writing

    def go_offline(self) -> None:
        """The disk fails: nothing can be written from now on."""
        self.offline_reason = "the disk failed"
        self.on_offline()

    def _require_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOffline(self.offline_reason)

    def begin_epoch(self, epoch: int) -> None:
        self._require_online()
        self.epochs.assign(epoch, self.end_offset)

    def append(self, view: memoryview, header: BatchHeader, *, leader_epoch: int) -> LogAppendInfo:
        """Write a producer's batch, which was admitted."""
        self._require_online()
        batch = self.new_batch(header, leader_epoch)
        self._append(batch)
        return LogAppendInfo(batch.base_offset, is_duplicate=False)

    def next_batch(self, number: int, header: BatchHeader, epoch: int) -> SimulatedBatch:
        """A producer's batch as it will be behind what is here."""
        parent = self.entries[-1] if self.entries else None
        return SimulatedBatch(
            number, header, base_offset=self.end_offset, epoch=epoch, parent=parent
        )

    def append_fetched(self, record_set: Sequence[SimulatedBatch]) -> None:
        """Write batches that follow each other and what is here."""
        self._require_online()
        for batch in record_set:
            # What is deleted can no longer be compared.
            before = self.entries[-1] if self.end_offset > self.start_offset else None
            is_next = batch.base_offset == self.end_offset
            if not is_next or (before is not None and before is not batch.parent):
                detail = f"{batch} was written behind {batch.parent}, not behind {before}"
                raise Violation("LogMatching", detail)
            self._append(batch)

    def _append(self, batch: SimulatedBatch) -> None:
        self.epochs.assign(batch.epoch, batch.base_offset)
        self.entries += [batch] * batch.count
        self.end_offset = batch.end_offset
        self.producers.record(batch.header, batch.base_offset)
        if self.epochs.epoch_of(batch.base_offset) != batch.epoch:
            raise Violation(
                "EpochsTellTheTruth", f"{batch} has another epoch than {self.epochs.entries} say"
            )
        self._on_write()

    def truncate_to(self, offset: int) -> None:
        self._require_online()
        self._keep_revivable()
        end_offset = max(offset, self.start_offset)
        del self.entries[_boundary(self.entries, end_offset - self.base_offset) :]
        self.epochs.truncate_from_end(offset)
        if self.base_offset + len(self.entries) < self.start_offset:
            self.truncate_fully(self.start_offset)
        else:
            self._on_truncated()

    def truncate_fully(self, start_offset: int) -> None:
        self._require_online()
        self._keep_revivable()
        self.entries = []
        self.base_offset = self.start_offset = start_offset
        self.epochs = EpochHistory()
        self._on_truncated()

    def _keep_revivable(self) -> None:
        if self._revivable is None:
            self._revivable = self.base_offset, self.entries.copy()

    def _on_truncated(self) -> None:
        """The log has another end, or another beginning: what follows from its batches too."""
        self.end_offset = self.base_offset + len(self.entries)
        self.synced_end = min(self.synced_end, self.end_offset)
        self.producers = ProducerStates()
        self._replay(lambda batch: self.producers.record(batch.header, batch.base_offset))
        if self.end_offset > self.start_offset:
            last = self.entries[-1]
            if self.epochs.epoch_of(self.end_offset - 1) != last.epoch:
                raise Violation(
                    "EpochsTellTheTruth", f"{last} has another epoch than {self.epochs.entries} say"
                )
        self._on_write()

    def _replay(self, visit: Callable[[SimulatedBatch], object]) -> None:
        offset = self.base_offset
        while offset < self.end_offset:
            batch = self.entries[offset - self.base_offset]
            visit(batch)
            offset = batch.end_offset

    def delete_before(self, offset: int) -> None:
        self._require_online()
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)
            self._on_write()

    # Ends of processes, and of the power

    def flush(self) -> None:
        """Everything is on the disk."""
        self.synced_end = self.end_offset
        self._revivable = None

    def open_after_kill(self) -> None:
        """As production opens a log whose process was killed."""
        self.epochs.truncate_from_end(self.end_offset)

    def lose_power(self, random: Random) -> None:
        """What was not synced is gone, or a part of it. The log is opened again later."""
        base_offset, entries = self.base_offset, self.entries
        if self._revivable is not None and random.random() < _REVIVAL:
            base_offset, entries = self._revivable
        kept_end = end_offset = base_offset + len(entries)
        if random.random() > _ALL_KEPT:
            kept_end = random.randint(min(self.synced_end, end_offset), end_offset)
        self._leave_on_disk(base_offset, entries[: _boundary(entries, kept_end - base_offset)])
        self.synced_end = self.end_offset
        self.epochs = EpochHistory()
        self._replay(lambda batch: self.epochs.assign(batch.epoch, batch.base_offset))
        self.epochs.truncate_from_start(self.start_offset)

    def lose_tail(self, offset: int) -> None:
        """The file was cut while no process had it. The log is opened again later."""
        place = _boundary(self.entries, offset - self.base_offset)
        self._leave_on_disk(self.base_offset, self.entries[:place])
        self.synced_end = min(self.synced_end, self.end_offset)

    def copy(self, source: "SimulatedLog") -> None:
        """Be the same as another log."""
        self.start_offset = source.start_offset
        self.epochs = EpochHistory(source.epochs.entries)
        self.synced_end = source.synced_end
        self._leave_on_disk(source.base_offset, source.entries.copy())

    def _leave_on_disk(self, base_offset: int, entries: list[SimulatedBatch]) -> None:
        """Keep only these batches, as the next process that opens the log finds them."""
        self._revivable = None
        self.base_offset, self.entries = base_offset, entries
        self.end_offset = base_offset + len(entries)
        if self.end_offset < self.start_offset:
            self.entries = []
            self.base_offset = self.end_offset = self.start_offset
        self.start_offset = max(self.start_offset, self.base_offset)
        self.producers = ProducerStates()
        self._replay(lambda batch: self.producers.record(batch.header, batch.base_offset))


def _boundary(entries: Sequence[SimulatedBatch], place: int) -> int:
    """The place itself if a batch begins there, or that of the batch it would cut in two."""
    place = max(0, place)
    while 0 < place < len(entries) and entries[place] is entries[place - 1]:
        place -= 1
    return place
