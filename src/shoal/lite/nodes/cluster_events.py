"""What a cluster writes to its event stream (`shoal.model.events`), as its supervisor sees it.

Rules:
- The processes and the metadata are looked at ten times a second; a state is written when it has
  changed. Counters, CPU and memory are written once a second.
- The state of a broker is the first that holds: dead, starting, paused; fenced by the controller;
  behind (not in sync for one of its replicas); leads; in sync; running (it has no replicas).
- A partition is `led by broker 2` or `without a leader`; leaders, in-sync and eligible replicas are
  in the details. At most `MOST_PARTITIONS` are followed; the gauge `partitions` counts all.
- A broker that is started again counts from 0; the counters of a tick continue where they were.
- A fault of a link, a disk or of requests begins when it is injected and ends when it is healed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState
from shoal.model.events import FaultSeen
from shoal.telemetry.events import EventWriter, now_us
from shoal.telemetry.processes import read_usages
from shoal.telemetry.samples import Chunk

LOOK_EVERY_S: Final = 0.1
TICK_EVERY_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 0.5
MOST_PARTITIONS: Final = 2000
# Other work of the event loop runs after each slice.
_SLICE: Final = 500
COUNTERS: Final = ("records_in", "bytes_in", "bytes_out", "produce_requests", "fetch_requests")


class TrafficSource(Protocol):
    """A broker's process."""

    async def collect(self, what: str) -> Iterable[Chunk]:
        """`totals`: its counters, summed over topics."""


class SeenNode(NamedTuple):
    """A process of the cluster, as the supervisor describes it."""

    id: int
    role: str
    state: str
    pid: int
    address: str
    # None unless it is a running broker.
    source: TrafficSource | None


class SeenCluster(NamedTuple):
    """What can be asked of a supervisor."""

    nodes: Callable[[], list[SeenNode]]
    state: Callable[[], ClusterState]
    # The active controller; None while no controller is active.
    leader: Callable[[], Awaitable[int | None]]
    faults: Callable[[], list[dict[str, Any]]]


class ClusterEvents:
    """The event stream of one cluster."""

    def __init__(
        self,
        folder: Path,
        name: str,
        seen: SeenCluster,
        details: Mapping[str, Any],
        *,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._writer = EventWriter(folder, "cluster", name, details=details)
        self._seen = seen
        self._look_every_s = look_every_s
        self._partitions: dict[str, PartitionRecord] = {}
        self._nodes: set[str] = set()
        self._behind: Counter[int] = Counter()
        self._applied = (0, -1)
        self._leader: int | None = None
        self._faults: dict[str, str] = {}
        self._counters = Counter(dict.fromkeys(COUNTERS, 0))
        self._counted: dict[int, dict[str, int]] = {}

    async def watch(self) -> None:
        """Look and tick until cancelled."""
        looks = round(TICK_EVERY_S / self._look_every_s)
        while True:
            await self._tick()
            for _ in range(looks):
                for _slice in self._look_in_slices():
                    await asyncio.sleep(0)
                await asyncio.sleep(self._look_every_s)

    def close(self) -> None:
        self.look()
        self._writer.close("finished")

    def look(self) -> None:
        """Write what has changed."""
        for _slice in self._look_in_slices():
            pass

    def _look_in_slices(self) -> Iterator[None]:
        state = self._seen.state()
        if self._applied != (applied := (id(state), state.applied_count)):
            yield from self._look_at_partitions(state)
            self._applied = applied
        nodes = self._seen.nodes()
        for node in nodes:
            self._write_node(node, state)
        gone = self._nodes - {_name_of(node) for node in nodes}
        for name in gone:
            self._writer.set_state(name, "removed")
            self._nodes.discard(name)
        self._look_at_faults()

    # States

    def _write_node(self, node: SeenNode, state: ClusterState) -> None:
        self._nodes.add(_name_of(node))
        details: dict[str, Any] = {"address": node.address, "pid": node.pid}
        if node.role == "controller":
            is_active = node.state == "running" and node.id == self._leader
            shown = "active" if is_active else "follows" if node.state == "running" else node.state
            self._writer.set_state(_name_of(node), shown, details=details)
            return
        leads = state.leader_counts[node.id]
        replicas, behind = state.replica_counts[node.id], self._behind[node.id]
        details |= {"leads": leads, "replicas": replicas, "behind": behind}
        word, reason = node.state, ""
        if word == "running":
            record = state.brokers.get(node.id)
            if record is None or record.fenced:
                word, reason = "fenced", "the controller has not heard from it, or it catches up"
            elif behind:
                word, reason = "behind", f"not in sync for {behind} of {replicas} replicas"
            elif replicas:
                word = "leads" if leads else "in sync"
        self._writer.set_state(_name_of(node), word, reason, details)

    def _look_at_partitions(self, state: ClusterState) -> Iterator[None]:
        """Look at all partitions; the state may change between slices, and is looked at again."""
        behind: Counter[int] = Counter()
        found: dict[str, PartitionRecord] = {}
        records = [
            (topic.name, record)
            for topic in state.topics.values()
            for record in topic.partitions.values()
        ]
        for place, (topic_name, record) in enumerate(records, start=1):
            for broker_id in record.replicas:
                if broker_id not in record.in_sync:
                    behind[broker_id] += 1
            if len(found) < MOST_PARTITIONS:
                name = f"{topic_name}-{record.partition}"
                found[name] = record
                if self._partitions.get(name) is not record:
                    self._write_partition(name, record)
            if not place % _SLICE:
                yield
        for name in self._partitions.keys() - found.keys():
            self._writer.set_state(f"partition {name}", "removed")
            self._writer.forget_state(f"partition {name}")
        self._partitions, self._behind = found, behind

    def _write_partition(self, name: str, record: PartitionRecord) -> None:
        has_leader = record.leader != NO_LEADER
        details = {
            "leader": record.leader,
            "epoch": record.leader_epoch,
            "replicas": list(record.replicas),
            "in_sync": list(record.in_sync),
            "eligible": list(record.eligible),
        }
        word = f"led by broker {record.leader}" if has_leader else "without a leader"
        self._writer.set_state(f"partition {name}", word, "", details)

    def _look_at_faults(self) -> None:
        found = {text: _target_of(each) for each in self._seen.faults() if (text := describe(each))}
        for text in found.keys() - self._faults.keys():
            self._writer.append(FaultSeen(now_us(), text, "begin", text, found[text]))
        for text in self._faults.keys() - found.keys():
            self._writer.append(FaultSeen(now_us(), text, "end", text, self._faults[text]))
        self._faults = found

    # Ticks

    async def _tick(self) -> None:
        nodes = self._seen.nodes()
        self._leader = await _answer_or_none(self._seen.leader())
        sources = {node.id: node.source for node in nodes if node.source is not None}
        answers = await asyncio.gather(
            *(_answer_or_none(each.collect("totals")) for each in sources.values())
        )
        for node_id, chunks in zip(sources, answers, strict=True):
            self._count(node_id, chunks or ())
        state = self._seen.state()
        partitions = [*self._partitions.values()]
        self._writer.tick(
            counters=dict(self._counters),
            gauges={
                "brokers": sum(node.role == "broker" for node in nodes),
                "partitions": sum(len(topic.partitions) for topic in state.topics.values()),
                "offline": sum(each.leader == NO_LEADER for each in partitions),
                "under_replicated": sum(len(p.in_sync) < len(p.replicas) for p in partitions),
            },
            processes=read_usages((_name_of(node), node.pid) for node in nodes),
        )

    def _count(self, node_id: int, chunks: Iterable[Chunk]) -> None:
        counted = self._counted.setdefault(node_id, {})
        for name, samples in chunks:
            for _, value in samples:
                before = counted.get(name, 0)
                self._counters[name] += int(value) - (before if value >= before else 0)
                counted[name] = int(value)


def describe(fault: Mapping[str, Any]) -> str:
    """A fault of `FaultPlan.describe` in words."""
    match fault:
        case {"kind": "link", "source": source, "target": target, **rest}:
            effects = [f"delayed by {rest['delay_ms']} ms"] if rest["delay_ms"] else []
            effects += [f"limited to {rest['bytes_per_s']} B/s"] if rest["bytes_per_s"] else []
            effect = "cut" if rest["is_cut"] else ", ".join(effects)
            return f"link from {source} to {target} {effect}"
        case {"kind": kind, "node": node, **rest}:
            values = [f"{k} {v}" for k, v in rest.items() if v is not None and k not in _NUMBERS]
            return f"{kind} of node {node}: {', '.join(values)}"
    return ""


def _target_of(fault: Mapping[str, Any]) -> str:
    return f"node {fault['source' if fault['kind'] == 'link' else 'node']}"


# They change with each request that a fault affects.
_NUMBERS: Final = ("number", "remaining")


def _name_of(node: SeenNode) -> str:
    return f"{node.role} {node.id}"


async def _answer_or_none(asked: Awaitable[Any]) -> Any:
    """The answer; None of a process that is paused or has ended."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asked
    except (TimeoutError, ConnectionError):
        return None
