"""What must be so after every step, by the names of the published specifications of Kafka.

LogMatching, LeaderCompleteness, LeaderCandidateCompleteness, NoCommittedRecordLost,
ConsistentRead, MonotonicHighWatermark, ReplicationQuorumSuperset; and EpochsTellTheTruth, which
all truncation rests on.
"""

from itertools import combinations

from support.replication.world import Entry, MemoryLog, World


class InvariantBroken(AssertionError):
    """Names the invariant first."""


def require(condition: bool, name: str, why: str) -> None:
    if not condition:
        raise InvariantBroken(f"{name}: {why}")


class Invariants:
    """Watches a world. It remembers everything that was ever committed, from offset 0 on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.committed: list[Entry] = []
        self._high_watermarks: dict[int, tuple[int, int]] = {}
        self._checked_acks: set[int] = set()
        self._checked_epochs: dict[int, object] = {}

    def check(self) -> None:
        self._commit()
        self._check_high_watermarks()
        self._check_reads()
        self._check_candidates()
        self._check_acknowledged()
        self._check_log_matching()
        self._check_epochs()
        self._check_quorum()

    def _commit(self) -> None:
        """Whatever any leader calls committed is committed, for good."""
        for broker in self._world.brokers.values():
            if broker.leader and broker.leader.high_watermark > len(self.committed):
                log = broker.log
                high_watermark = broker.leader.high_watermark
                news = log.entries[len(self.committed) - log.base_offset :]
                self.committed += news[: high_watermark - len(self.committed)]

    def _holds(self, log: MemoryLog, end_offset: int) -> bool:
        """Whether a log has what was committed below an offset."""
        start = log.start_offset
        own = log.entries[start - log.base_offset : end_offset - log.base_offset]
        return log.end_offset >= end_offset and own == self.committed[start:end_offset]

    def _check_high_watermarks(self) -> None:
        for broker in self._world.brokers.values():
            if broker.replica is None:
                continue
            now = (broker.broker_epoch, broker.replica.role.high_watermark)
            before = self._high_watermarks.get(broker.broker_id, (0, 0))
            require(
                now[0] > before[0] or now >= before,
                "MonotonicHighWatermark",
                f"that of {broker.broker_id} went from {before[1]} to {now[1]}",
            )
            self._high_watermarks[broker.broker_id] = now

    def _check_reads(self) -> None:
        for broker in self._world.brokers.values():
            if broker.replica is not None:
                high_watermark = broker.replica.role.high_watermark
                require(
                    high_watermark <= len(self.committed)
                    and self._holds(broker.log, high_watermark),
                    "ConsistentRead",
                    f"{broker.broker_id} serves other records than were served before",
                )

    def _check_candidates(self) -> None:
        controller = self._world.controller
        for broker_id in controller.candidates | {controller.assignment.leader} - {-1}:
            is_leader = broker_id == controller.assignment.leader
            require(
                self._holds(self._world.brokers[broker_id].log, len(self.committed)),
                "LeaderCompleteness" if is_leader else "LeaderCandidateCompleteness",
                f"{broker_id} has not all that was committed, up to {len(self.committed)}",
            )

    def _check_acknowledged(self) -> None:
        for offset, value in self._world.acknowledged.items():
            if offset in self._checked_acks:
                continue
            if offset < len(self.committed):
                holds = self.committed[offset].value == value
                self._checked_acks.add(offset)
            else:
                candidates = [self._world.brokers[i] for i in self._world.controller.candidates]
                entries = [broker.log.at(offset) for broker in candidates]
                holds = all(entry is not None and entry.value == value for entry in entries)
            require(holds, "NoCommittedRecordLost", f"{value} at {offset} was acknowledged")

    def _check_log_matching(self) -> None:
        logs = [broker.log for broker in self._world.brokers.values()]
        for one, other in combinations(logs, 2):
            base = max(one.start_offset, other.start_offset)
            place = min(one.end_offset, other.end_offset) - 1
            while place >= base:
                if (
                    one.entries[place - one.base_offset].epoch
                    == other.entries[place - other.base_offset].epoch
                ):
                    break
                place -= 1
            mine = one.entries[base - one.base_offset : place + 1 - one.base_offset]
            theirs = other.entries[base - other.base_offset : place + 1 - other.base_offset]
            require(
                place < base or mine == theirs,
                "LogMatching",
                f"same epoch at {place}, but below it {mine} and {theirs}",
            )

    def _check_epochs(self) -> None:
        for broker in self._world.brokers.values():
            log = broker.log
            state = (log.start_offset, log.end_offset, log.epochs.entries)
            if self._checked_epochs.get(broker.broker_id) == state:
                continue
            self._checked_epochs[broker.broker_id] = state
            for offset in range(log.start_offset, log.end_offset):
                epoch = log.entries[offset - log.base_offset].epoch
                require(
                    log.epochs.epoch_of(offset) == epoch,
                    "EpochsTellTheTruth",
                    f"{broker.broker_id} takes {offset} for epoch {log.epochs.epoch_of(offset)}",
                )

    def _check_quorum(self) -> None:
        controller = self._world.controller
        now = controller.assignment
        for broker in self._world.brokers.values():
            leader = broker.leader
            if leader is None or leader.leader_epoch != now.leader_epoch:
                continue
            members = set(now.isr)
            if len(leader.isr) >= controller.min_insync_replicas:
                members |= controller.elr
            require(
                leader.maximal_isr >= members,
                "ReplicationQuorumSuperset",
                f"{broker.broker_id} counts {sorted(leader.maximal_isr)} of {sorted(members)}",
            )
