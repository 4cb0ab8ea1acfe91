"""The disks of controllers and brokers.

Rules of this file:
- A controller's disk is always synced: production forces every vote and entry to it.
- A broker's logs are written and not synced. A kill keeps what was written; a power loss may
  take it.
- Files are damaged while no process has them: one is cut, or a partition's folder is gone. A
  process notices that as production does: a file does not end with a whole batch, or a log ends
  below the high watermark that was written down. Nobody notices when whole batches are missing
  behind that mark, and nobody promises to: such damage is not done.
- `KillAfterWrites` ends the process after a number of writes, so that everything can end between
  two of them. Or within the next one: then the file of a log is torn, though nothing is lost.
"""

from collections.abc import Iterable
from random import Random
from uuid import UUID

from shoal.lite.raft.actions import (
    AppendEntries,
    LoadSnapshot,
    PersistVote,
    SaveSnapshot,
    StorageAction,
    TruncateEntries,
)
from shoal.lite.raft.model import QuorumState, RaftEntry, RaftSnapshot, StoredState, Voters
from shoal.lite.simulation.errors import ProcessKilled
from shoal.lite.simulation.log import SimulatedLog

# A partition: its topic's id, and its number.
Key = tuple[UUID, int]
# How likely damage takes the whole folder of a partition.
_FOLDER_GONE = 0.25


class KillAfterWrites:
    """Kills the process after its next `writes_left` writes; never, while that is None."""

    def __init__(self) -> None:
        self.writes_left: int | None = None

    def on_write(self) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.writes_left = None
                raise ProcessKilled


class QuorumDisk:
    """What a controller would find if it started now."""

    def __init__(self, voters: Voters, kill_after: KillAfterWrites) -> None:
        self._voters = voters
        self._kill_after = kill_after
        self.quorum = QuorumState()
        self.snapshot: RaftSnapshot | None = None
        # By the offset where it begins, in order.
        self.entries: dict[int, RaftEntry] = {}
        self.end_offset = 0

    @property
    def start_offset(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.id.end_offset

    def load_state(self) -> StoredState:
        return StoredState(self._voters, self.quorum, self.snapshot, tuple(self.entries.values()))

    def holds(self, base_offset: int, entry: RaftEntry) -> bool:
        """Whether an entry is on the disk, or in the snapshot instead."""
        if base_offset + entry.count <= self.start_offset:
            return True
        return self.entries.get(base_offset) == entry

    def last_epoch_before(self, offset: int) -> int:
        """The epoch of the entry that ends at `offset`."""
        for base, entry in reversed(self.entries.items()):
            if base < offset:
                return entry.epoch
        return 0 if self.snapshot is None else self.snapshot.id.epoch

    def perform(self, action: StorageAction) -> None:
        match action:
            case PersistVote(state):
                self.quorum = state
            case AppendEntries(_, entries):
                for place, entry in enumerate(entries):
                    if place:
                        self._kill_after.on_write()
                    self._append(entry)
            case TruncateEntries(offset):
                self.entries = {base: e for base, e in self.entries.items() if base < offset}
                self.end_offset = offset
            case SaveSnapshot(snapshot):
                end = snapshot.id.end_offset
                self.snapshot = snapshot
                self.entries = {base: e for base, e in self.entries.items() if base >= end}
            case LoadSnapshot(snapshot):
                self.snapshot = snapshot
                self.entries = {}
                self.end_offset = snapshot.id.end_offset
        self._kill_after.on_write()

    def _append(self, entry: RaftEntry) -> None:
        self.entries[self.end_offset] = entry
        self.end_offset += entry.count


class BrokerDisk:
    """A broker's folder."""

    def __init__(self, directory_id: str, kill_after: KillAfterWrites) -> None:
        self.directory_id = directory_id
        self._kill_after = kill_after
        self.logs: dict[Key, SimulatedLog] = {}
        # High watermarks, as they were written down some time ago, and how far logs were written.
        self.checkpoint: dict[Key, int] = {}
        self.ends: dict[Key, int] = {}
        # The last process that shut down cleanly, if no other has started since.
        self.clean_incarnation: str | None = None
        # The last process that opened its logs, and those that began since; synced before any of
        # them is heard of.
        self.processes: list[str] = []
        # The logs in which a process found records missing that it has not reported yet.
        self.cut: set[Key] = set()
        # For the judge: the logs damaged since a process last reported all damage.
        self.damaged: set[Key] = set()

    def log(self, key: Key) -> SimulatedLog:
        """The log of a partition; a new one is empty."""
        log = self.logs.get(key)
        if log is None:
            log = self.logs[key] = SimulatedLog(lambda: self._on_write(key))
        return log

    def _on_write(self, key: Key) -> None:
        end_offset = self.logs[key].end_offset
        # Before a cut, and after a write.
        self.ends[key] = min(self.ends.get(key, 0), end_offset)
        self._kill_after.on_write()
        self.ends[key] = end_offset

    def delete(self, key: Key) -> None:
        self.logs.pop(key, None)
        self.checkpoint.pop(key, None)
        self.ends.pop(key, None)
        self.cut.discard(key)

    def flush(self) -> None:
        for log in self.logs.values():
            log.flush()

    def begin(self, incarnation: str) -> str | None:
        """A new process gets the folder; returns the one before it if it shut down cleanly."""
        self.processes.append(incarnation)
        clean, self.clean_incarnation = self.clean_incarnation, None
        for log in self.logs.values():
            log.open_after_kill()
        return clean

    def open(self, keys: Iterable[Key]) -> list[Key]:
        """The process that began last opens its logs; returns those with less than there was,
        as far as it can tell."""
        del self.processes[:-1]
        lost = []
        for key in keys:
            end_offset = self.log(key).end_offset
            written = max(self.ends.get(key, 0), self.checkpoint.get(key, 0))
            if key in self.cut or end_offset < written:
                lost.append(key)
            self.ends[key] = end_offset
        self.cut = set(lost)
        return lost

    def damage(self, key: Key, random: Random) -> None:
        """One log loses any part of its tail, or is gone."""
        self.damaged.add(key)
        if random.random() < _FOLDER_GONE:
            del self.logs[key]
        else:
            log = self.logs[key]
            log.lose_tail(random.randint(log.base_offset, log.end_offset))

    def copy(self) -> "BrokerDisk":
        """What a backup of the folder has."""
        other = BrokerDisk(self.directory_id, self._kill_after)
        for key, log in self.logs.items():
            other.log(key).copy(log)
        other.checkpoint = self.checkpoint.copy()
        other.ends = self.ends.copy()
        other.clean_incarnation = self.clean_incarnation
        other.processes = self.processes.copy()
        other.cut = self.cut.copy()
        other.damaged = self.damaged.copy()
        return other

    def rename(self, directory_id: str) -> None:
        """Someone makes it another folder, of which nobody knows how it was left."""
        self.directory_id = directory_id
        self.processes = []
        self.clean_incarnation = None
        self.checkpoint = {}
        self.ends = {}

    def lose_power(self, random: Random) -> None:
        for log in self.logs.values():
            log.lose_power(random)
        if self.clean_incarnation is None:
            # What lies below the marks may be other records now: a broker that starts on another
            # boot does not believe them.
            self.checkpoint = {}
            self.ends = {}
