"""What must be so among controllers, by the names of KRaft's own simulation.

MonotonicEpoch                  a member's epoch never falls, not even over a restart
SingleLeader                    one leader per epoch
MonotonicHighWatermark          a member's high watermark falls only by a restart
MajorityReachedHighWatermark    what is committed is on the disks of a majority
ConsistentCommittedData         all nodes get the same entries at the same offsets
MetadataLogMatching             the same epoch at the same offset means the same history
LeaderCompleteness              a leader's log has everything that earlier epochs have committed
MembersAreKnown                 nobody is taken for somebody else
"""

from typing import TYPE_CHECKING, Any

from shoal.lite.raft.actions import AppendEntries, LoadSnapshot, TruncateEntries
from shoal.lite.raft.model import RaftEntry, Voters
from shoal.lite.raft.node import RaftRole
from shoal.lite.simulation.brokers import BrokerProcess
from shoal.lite.simulation.controllers import ControllerProcess
from shoal.lite.simulation.errors import Violation

if TYPE_CHECKING:
    from shoal.lite.simulation.world import World


class QuorumJudge:
    """Remembers every entry that was ever committed."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._committed: dict[int, RaftEntry] = {}
        # By offset: the latest epoch that had a leader when the entry was committed.
        self._committed_by: dict[int, int] = {}
        self._end_offset = 0
        self._leaders: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._high_watermarks: dict[ControllerProcess, int] = {}
        # By offset and epoch: the entry, and the epoch of the one before it.
        self._histories: dict[tuple[int, int], tuple[RaftEntry, int]] = {}

    @property
    def latest_epoch(self) -> int:
        """The highest epoch that had a leader."""
        return max(self._leaders, default=0)

    def check(self, process: ControllerProcess) -> None:
        """Check a controller after an event."""
        raft, node_id = process.raft, process.id
        if raft.epoch < self._epochs.get(node_id, 0):
            detail = f"{node_id} went back from epoch {self._epochs[node_id]} to {raft.epoch}"
            raise Violation("MonotonicEpoch", detail)
        # What is not on the disk yet is not promised to anyone.
        self._epochs[node_id] = process.disk.quorum.epoch
        known = self._high_watermarks.get(process, 0)
        if raft.high_watermark < known:
            detail = f"that of {node_id} went back from {known} to {raft.high_watermark}"
            raise Violation("MonotonicHighWatermark", detail)
        self._high_watermarks[process] = raft.high_watermark
        if raft.role is RaftRole.LEADER and self._leaders.get(raft.epoch) != node_id:
            if raft.epoch in self._leaders:
                detail = f"{node_id} and {self._leaders[raft.epoch]} lead epoch {raft.epoch}"
                raise Violation("SingleLeader", detail)
            self._leaders[raft.epoch] = node_id
            self._world.counters["quorum elections"] += 1
            self._check_complete(process)

    def _check_complete(self, process: ControllerProcess) -> None:
        log = process.raft.log
        for offset, entry in reversed(self._committed.items()):
            if offset < log.start_offset:
                break
            if self._committed_by[offset] >= process.raft.epoch:
                # The vote that made it a leader was late: the next one is at work already.
                continue
            end_offset = offset + entry.count
            if log.end_offset < end_offset or log.entries_between(offset, end_offset) != (entry,):
                detail = f"{process.id} leads epoch {process.raft.epoch} without committed {offset}"
                raise Violation("LeaderCompleteness", detail)

    def will_store(self, process: ControllerProcess, action: Any) -> None:
        """Equal entries with equal predecessors, everywhere: then histories are equal too."""
        if isinstance(action, AppendEntries):
            previous = process.disk.last_epoch_before(action.base_offset)
            offset = action.base_offset
            for entry in action.entries:
                known = self._histories.setdefault((offset, entry.epoch), (entry, previous))
                if known != (entry, previous):
                    detail = f"{process.id} has another entry of epoch {entry.epoch} at {offset}"
                    raise Violation("MetadataLogMatching", detail)
                previous = entry.epoch
                offset += entry.count
        elif isinstance(action, TruncateEntries) and action.offset < process.raft.high_watermark:
            detail = f"{process.id} truncates its log to {action.offset}, below its high watermark"
            raise Violation("MonotonicHighWatermark", detail)
        elif isinstance(action, LoadSnapshot):
            self._world.counters["snapshots loaded"] += 1

    def on_committed(
        self,
        process: BrokerProcess | ControllerProcess,
        base_offset: int,
        entries: tuple[RaftEntry, ...],
    ) -> list[RaftEntry]:
        """A node got committed entries; returns those that no node had before."""
        news = []
        offset = base_offset
        for entry in entries:
            if offset == self._end_offset:
                self._committed[offset] = entry
                self._committed_by[offset] = self.latest_epoch
                self._end_offset += entry.count
                news.append(entry)
                self._world.counters["metadata entries"] += 1
                # The first node that gets an entry leads, and its voters are those that count.
                self._check_majority(process.raft.voters, offset, entry)
            elif self._committed.get(offset) != entry:
                detail = f"{process.id} got another committed entry at {offset}"
                raise Violation("ConsistentCommittedData", detail)
            offset += entry.count
        return news

    def _check_majority(self, voters: Voters, offset: int, entry: RaftEntry) -> None:
        machines = self._world.controllers
        count = sum(machines[node_id].disk.holds(offset, entry) for node_id in voters.ids)
        if count < voters.majority:
            detail = f"offset {offset} is committed, but only on {count} disks"
            raise Violation("MajorityReachedHighWatermark", detail)
