"""A quorum in a hostile world: seeded delays, losses, copies, cuts, crashes and torn writes.

The nodes are the real ones; time, network and disks are simulated. After every step the
invariants are checked; they have the names of KRaft's own simulation and of the TLA+
specifications of Kafka's replication:

    MonotonicEpoch                  a member's epoch never falls, not even over a restart
    SingleLeader                    one leader per epoch
    MonotonicHighWatermark          a member's high watermark falls only by a restart
    MajorityReachedHighWatermark    what is committed is on the disks of a majority
    ConsistentCommittedData         all members are told of the same entries at the same offsets
    MetadataLogMatching             the same epoch at the same offset means the same history
    LeaderCompleteness              a new leader's log has everything that is committed
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import NamedTuple
from uuid import UUID

from shoal.lite.raft.actions import (
    STORAGE_ACTIONS,
    Action,
    AppendEntries,
    BecameLeader,
    Committed,
    LoadSnapshot,
    SendToPeer,
    TruncateEntries,
)
from shoal.lite.raft.config import RaftConfig
from shoal.lite.raft.errors import NotLeader, RaftInvariantViolated, VoterChangeRefused
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.messages import RaftMessage
from shoal.lite.raft.model import RaftEntry, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.node import RaftNode, RaftRole
from shoal.lite.simulation.disk import Fuse, QuorumDisk

# Within this time a calm quorum must have found itself.
CALM_MS = 20_000


class Violated(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How hostile the world is. Probabilities are per message or per step."""

    voters: int = 3
    observers: int = 0
    loss: float = 0.05
    duplication: float = 0.05
    delay_ms: int = 60
    # A late message comes this much later.
    lateness: float = 0.05
    late_ms: int = 2000
    crash: float = 0.01
    # How likely the victim of a crash or a cut is whoever leads.
    hunt: float = 0.0
    # How likely a crash comes in the middle of what a node wants done.
    torn: float = 0.5
    down_ms: int = 1500
    cut: float = 0.01
    cut_ms: int = 3000
    propose: float = 0.2
    snapshot: float = 0.01
    resign: float = 0.002
    change_voters: float = 0.0
    fetch_max_bytes: int = 200


CALM = Weather(loss=0, duplication=0, lateness=0, crash=0, cut=0, propose=0, snapshot=0, resign=0)


class Wake(Enum):
    """What happens beside messages."""

    TICK = "tick"
    RESTART = "restart"


class Event(NamedTuple):
    time_ms: int
    # Makes the order of events of the same time definite.
    number: int
    node_id: int
    what: RaftMessage | Wake
    sender: int
    incarnation: int


class World:
    """One history."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.now_ms = 0
        self.config = RaftConfig(
            election_timeout_ms=300,
            fetch_timeout_ms=600,
            fetch_max_wait_ms=150,
            request_timeout_ms=300,
            fetch_max_bytes=weather.fetch_max_bytes,
            snapshot_chunk_bytes=150,
        )
        ids = range(1, weather.voters + weather.observers + 1)
        self.keys = {node_id: ReplicaKey(node_id, UUID(int=node_id)) for node_id in ids}
        first_voters = Voters(
            Voter(key.id, key.directory) for key in self.keys.values() if key.id <= weather.voters
        )
        self.disks = {node_id: QuorumDisk(first_voters, Fuse()) for node_id in ids}
        # Those that count, as of the last entry that was committed.
        self.voters = first_voters
        self.nodes: dict[int, RaftNode] = {}
        self.incarnations = dict.fromkeys(ids, 0)
        self.timers: dict[int, int | None] = dict.fromkeys(ids)
        self.cuts: dict[tuple[int, int], int] = {}
        self.proposed = 0
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[object, ...]] = []
        self._events: list[Event] = []
        self._numbers = iter(range(1 << 62))
        # What the invariants remember.
        self.committed: dict[int, RaftEntry] = {}
        self.committed_end = 0
        self._leaders: dict[int, int] = {}
        self._epochs = dict.fromkeys(ids, 0)
        self._watermarks = dict.fromkeys(ids, 0)
        self._histories: dict[tuple[int, int], tuple[RaftEntry, int]] = {}
        for node_id in ids:
            self._start(node_id)

    # Running

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def calm_down(self) -> None:
        """No more mischief: in the end somebody leads, and all have what it has."""
        self.weather = CALM
        self.cuts.clear()
        deadline_ms = self.now_ms + CALM_MS
        while not self._is_settled():
            self.require(self.now_ms < deadline_ms, "Convergence", list(self.nodes))
            self.step()

    def _is_settled(self) -> bool:
        nodes = self.nodes.values()
        leaders = {node.leader_id for node in nodes}
        ends = {node.log.end_offset for node in nodes} | {node.high_watermark for node in nodes}
        everybody = len(nodes) == len(self.keys)
        return everybody and len(leaders) == len(ends) == 1 and None not in leaders

    def step(self) -> None:
        self._do_mischief()
        if not self._events:
            self.now_ms += 100
            return
        event = heapq.heappop(self._events)
        self.now_ms = max(self.now_ms, event.time_ms)
        node = self.nodes.get(event.node_id)
        if event.what is Wake.RESTART:
            if node is None:
                self._start(event.node_id)
            return
        if node is None or event.incarnation not in {0, self.incarnations[event.node_id]}:
            return
        if isinstance(event.what, Wake):
            self.timers[event.node_id] = None
            node.tick(self.now_ms)
        else:
            node.receive(self.now_ms, event.sender, event.what)
        self._settle(node)

    def _schedule(
        self,
        time_ms: int,
        node_id: int,
        what: "RaftMessage | Wake",
        sender: int = 0,
    ) -> None:
        # A timer belongs to one start of a node, a message to whoever has its id.
        incarnation = self.incarnations[node_id] if what is Wake.TICK else 0
        event = Event(time_ms, next(self._numbers), node_id, what, sender, incarnation)
        heapq.heappush(self._events, event)

    def load_state(self, node_id: int) -> StoredState:
        """What a member finds when it starts."""
        return self.disks[node_id].load_state()

    def _start(self, node_id: int) -> None:
        self.incarnations[node_id] += 1
        self._watermarks[node_id] = 0
        self.timers[node_id] = None
        node = RaftNode(
            self.keys[node_id],
            self.load_state(node_id),
            now_ms=self.now_ms,
            random=Random(self.random.getrandbits(32)),
            config=self.config,
        )
        self.nodes[node_id] = node
        self.trace.append((self.now_ms, node_id, "start"))
        self._settle(node)

    def _crash(self, node_id: int) -> None:
        self.counts["crashes"] += 1
        self.trace.append((self.now_ms, node_id, "crash"))
        del self.nodes[node_id]
        wait_ms = self.random.randrange(1, self.weather.down_ms)
        self._schedule(self.now_ms + wait_ms, node_id, Wake.RESTART)

    def _settle(self, node: RaftNode) -> None:
        """Perform what the node wants, or crash in the middle of it."""
        node_id = node.id
        while actions := node.take_actions():
            if self.random.random() < self.weather.crash * self.weather.torn:
                self._perform_some(node, actions)
                self._check(node)
                self._crash(node_id)
                return
            for action in actions:
                self._perform(node, action)
            node.on_persisted(self.now_ms, self.disks[node_id].end_offset)
        self._check(node)
        deadline_ms = node.next_deadline_ms()
        planned_ms = self.timers[node_id]
        if deadline_ms is not None and (planned_ms is None or planned_ms > deadline_ms):
            self.timers[node_id] = deadline_ms
            self._schedule(max(deadline_ms, self.now_ms + 1), node_id, Wake.TICK)

    def _perform_some(self, node: RaftNode, actions: Sequence[Action]) -> None:
        done = self.random.randrange(len(actions) + 1)
        for action in actions[:done]:
            self._perform(node, action)
        if done < len(actions) and isinstance(actions[done], AppendEntries):
            action = actions[done]
            assert isinstance(action, AppendEntries)
            kept = self.random.randrange(len(action.entries))
            torn = AppendEntries(action.base_offset, action.entries[:kept])
            self._perform(node, torn)

    def _perform(self, node: RaftNode, action: Action) -> None:
        if not isinstance(action, SendToPeer):
            self.trace.append((self.now_ms, node.id, action))
        if isinstance(action, STORAGE_ACTIONS):
            self.disks[node.id].perform(action)
        match action:
            case SendToPeer(to, message):
                self._send(node.id, to, message)
            case AppendEntries(base_offset, entries):
                self._check_matching(node.id, base_offset, entries)
            case TruncateEntries() | LoadSnapshot():
                self.counts["snapshots" if isinstance(action, LoadSnapshot) else "cuts"] += 1
                self._check_majority()
            case Committed(base_offset, entries):
                self._check_committed(node, base_offset, entries)
            case BecameLeader():
                self.counts["leaders"] += 1
            case _:
                pass

    # Mischief

    def _send(self, sender: int, to: int, message: RaftMessage) -> None:
        weather = self.weather
        copies = 2 if self.random.random() < weather.duplication else 1
        for _ in range(copies):
            if self.cuts.get((sender, to), 0) > self.now_ms:
                continue
            if self.random.random() < weather.loss:
                continue
            delay_ms = self.random.randrange(1, weather.delay_ms)
            if self.random.random() < weather.lateness:
                delay_ms += self.random.randrange(weather.late_ms)
            self._schedule(self.now_ms + delay_ms, to, message, sender)

    def _do_mischief(self) -> None:
        weather = self.weather
        random = self.random
        if random.random() < weather.propose:
            self._propose()
        if not self.nodes:
            return
        victim = self._victim()
        if random.random() < weather.crash * (1 - weather.torn):
            self._crash(victim)
            return
        if random.random() < weather.cut:
            self._cut(victim)
        node = self.nodes[victim]
        if random.random() < weather.snapshot and node.high_watermark > node.log.start_offset:
            node.save_snapshot(node.high_watermark, [b"state"])
            self._settle(node)
        elif random.random() < weather.resign:
            node.resign(self.now_ms)
            self._settle(node)
        elif random.random() < weather.change_voters:
            self._change_voters()

    def _victim(self) -> int:
        leaders = [node.id for node in self.nodes.values() if node.role is RaftRole.LEADER]
        if leaders and self.random.random() < self.weather.hunt:
            return self.random.choice(leaders)
        return self.random.choice(list(self.nodes))

    def _propose(self) -> None:
        leaders = [node for node in self.nodes.values() if node.is_leader]
        if leaders:
            node = self.random.choice(leaders)
            self.proposed += 1
            count = self.random.choice((1, 1, 2))
            node.propose(self.now_ms, [b"%d.%d" % (self.proposed, i) for i in range(count)])
            self._settle(node)

    def _cut(self, victim: int) -> None:
        until_ms = self.now_ms + self.random.randrange(1, self.weather.cut_ms)
        others = [node_id for node_id in self.keys if node_id != victim]
        kind = self.random.choice(("in", "out", "all", "link"))
        if kind == "link":
            others = [self.random.choice(others)]
        for other in others:
            if kind != "in":
                self.cuts[(victim, other)] = until_ms
            if kind != "out":
                self.cuts[(other, victim)] = until_ms
        self.trace.append((self.now_ms, victim, "cut", kind, others, until_ms))

    def _change_voters(self) -> None:
        leaders = [node for node in self.nodes.values() if node.is_leader]
        if not leaders:
            return
        node = self.random.choice(leaders)
        key = self.keys[self.random.choice(list(self.keys))]
        try:
            if node.voters.has(key):
                node.remove_voter(self.now_ms, key)
            else:
                node.add_voter(self.now_ms, Voter(key.id, key.directory))
            self.counts["voter changes"] += 1
        except (VoterChangeRefused, NotLeader):
            self.counts["voter changes refused"] += 1
        self._settle(node)

    # Invariants

    def _check(self, node: RaftNode) -> None:
        self.require(node.epoch >= self._epochs[node.id], "MonotonicEpoch", node)
        self._epochs[node.id] = self.disks[node.id].quorum.epoch
        self.require(
            node.high_watermark >= self._watermarks[node.id], "MonotonicHighWatermark", node
        )
        self._watermarks[node.id] = node.high_watermark
        if node.role is RaftRole.LEADER:
            if node.epoch not in self._leaders:
                self._leaders[node.epoch] = node.id
                if node.epoch == max(self._leaders):  # a late one owes nothing to later ones
                    self._check_complete(node)
            self.require(self._leaders[node.epoch] == node.id, "SingleLeader", node)

    def _check_complete(self, node: RaftNode) -> None:
        log = node.log
        boundary = log.has_boundary(self.committed_end)
        self.require(boundary or log.start_offset > self.committed_end, "LeaderCompleteness", node)
        missing = [
            offset
            for offset, entry in self.committed.items()
            if offset >= log.start_offset and not _has_entry(log, offset, entry)
        ]
        self.require(not missing, "LeaderCompleteness", node)

    def _check_matching(
        self, node_id: int, base_offset: int, entries: tuple[RaftEntry, ...]
    ) -> None:
        """Equal entries with equal predecessors, everywhere: then histories are equal too."""
        disk = self.disks[node_id]
        previous = disk.last_epoch_before(base_offset)
        offset = base_offset
        for entry in entries:
            found = self._histories.setdefault((offset, entry.epoch), (entry, previous))
            self.require(found == (entry, previous), "MetadataLogMatching", node_id)
            previous = entry.epoch
            offset += entry.count

    def _check_committed(
        self, node: RaftNode, base_offset: int, entries: Sequence[RaftEntry]
    ) -> None:
        offset = base_offset
        for entry in entries:
            if offset == self.committed_end:
                self.committed[offset] = entry
                self.committed_end += entry.count
                self.counts["committed"] += 1
                # Whoever commits first leads, and its voters are those that count.
                self.voters = node.voters
            self.require(self.committed.get(offset) == entry, "ConsistentCommittedData", node)
            offset += entry.count
        if offset == self.committed_end:
            self._check_majority()

    def _check_majority(self) -> None:
        if not self.committed:
            return
        base, entry = next(reversed(self.committed.items()))
        have = [node_id for node_id, disk in self.disks.items() if disk.holds(base, entry)]
        count = sum(node_id in self.voters.ids for node_id in have)
        self.require(count >= self.voters.majority, "MajorityReachedHighWatermark", have)

    def require(self, condition: bool, invariant: str, detail: object) -> None:
        if not condition:
            who = detail.id if isinstance(detail, RaftNode) else detail
            raise Violated(f"{invariant} ({who}) at {self.now_ms} ms")


def _has_entry(log: RaftLog, offset: int, entry: RaftEntry) -> bool:
    return log.has_boundary(offset) and log.read(offset, 0)[:1] == (entry,)


def first_violation(
    seeds: range, weather: Weather, steps: int, world: type[World] = World
) -> tuple[int, str] | None:
    """The first seed whose history violates an invariant, and how."""
    for seed in seeds:
        history = world(seed, weather)
        try:
            history.run(steps)
        except (Violated, RaftInvariantViolated) as violation:
            return seed, f"{type(violation).__name__}: {violation}"
    return None
