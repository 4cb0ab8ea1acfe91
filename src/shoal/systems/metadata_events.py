"""The event stream of a cluster that writes none itself: Apache Kafka, or an external one.

Rules:
- Once a second the metadata is asked of the brokers, as any client does, and the processes are
  looked at if they are known. A state is written when it has changed, in the words of Kafka Lite's
  event stream.
- The state of a broker is the first that holds: dead, paused (its process); fenced (it is not in
  the metadata); behind (not in sync for one of its replicas); leads; in sync; running.
- Of an external cluster there are no processes and no dead brokers: a broker that left the
  metadata is `missing`.
- Counters are left out: the metadata has none.
- If no broker answers, the partitions keep their last state, and the log says so once.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shoal.client.client import Client
from shoal.client.cluster.metadata import NO_LEADER, ClusterMetadata, PartitionMetadata
from shoal.client.errors import ClientError
from shoal.model.nodes import Node
from shoal.runtime.processes import ProcessIdentity
from shoal.runtime.tasks import log_only, start_thread
from shoal.telemetry.events import EventWriter
from shoal.telemetry.processes import read_usages

LOOK_EVERY_S: Final = 1.0
MOST_PARTITIONS: Final = 2000
_ANSWER_TIMEOUT_S: Final = 3.0

ListNodes = Callable[[], Sequence[Node]]


class MetadataEvents:
    """Writes the events of one cluster from a thread of its own, until `close`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        properties: Mapping[str, str],
        *,
        engine: str,
        topics: Sequence[str] | None = None,
        list_nodes: ListNodes = tuple,
    ) -> None:
        """Without `topics` all topics are asked for; `list_nodes` has the known processes."""
        details = {"engine": engine, "bootstrap": properties["bootstrap.servers"]}
        self._writer = EventWriter(folder, "cluster", name, details=details)
        self._properties = {**properties, "allow.auto.create.topics": "false"}
        self._topics = topics
        self._list_nodes = list_nodes
        self._brokers: dict[str, str] = {}  # by name: their addresses
        self._partitions: set[str] = set()
        self._is_silent = False
        self._ended = threading.Event()
        self._thread = start_thread("events of a cluster", self._run, on_failure=log_only)

    def look(self) -> None:
        """Does nothing: the thread looks."""

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._writer.close("finished")

    def _run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        client: Client | None = None
        try:
            while not self._ended.is_set():
                try:
                    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                        if client is None:
                            client = await Client(self._properties).__aenter__()
                        found = await client.metadata(self._topics, refresh=True)
                except (ClientError, OSError, TimeoutError) as error:
                    self._write(None, str(error) or "no broker answers")
                else:
                    self._write(found)
                await asyncio.to_thread(self._ended.wait, LOOK_EVERY_S)
        finally:
            if client is not None:
                await client.close()

    def _write(self, found: ClusterMetadata | None, problem: str = "") -> None:
        if problem and not self._is_silent:
            self._writer.log("warning", f"the cluster's metadata is not known: {problem}")
        self._is_silent = found is None
        nodes = self._list_nodes()
        partitions = {} if found is None else _list_partitions(found)
        if found is not None:
            self._write_partitions(partitions)
        self._write_brokers(nodes, found, partitions.values())
        gauges: dict[str, float] = {}
        if found is not None:
            gauges["brokers"] = len(found.brokers)
            gauges["partitions"] = len(partitions)
            gauges["offline"] = sum(each.leader == NO_LEADER for each in partitions.values())
            gauges["under_replicated"] = sum(
                len(each.isr) < len(each.replicas) for each in partitions.values()
            )
        used = read_usages((f"broker {node.id}", node.pid) for node in nodes)
        self._writer.tick(gauges=gauges, processes=used)

    def _write_partitions(self, partitions: Mapping[str, PartitionMetadata]) -> None:
        shown = dict(list(partitions.items())[:MOST_PARTITIONS])
        for name, each in shown.items():
            has_leader = each.leader != NO_LEADER
            word = f"led by broker {each.leader}" if has_leader else "without a leader"
            details: dict[str, Any] = {"leader": each.leader, "epoch": each.leader_epoch}
            details |= {"replicas": list(each.replicas), "in_sync": sorted(each.isr)}
            self._writer.set_state(f"partition {name}", word, "", details)
        for name in self._partitions - shown.keys():
            self._writer.set_state(f"partition {name}", "removed")
            self._writer.forget_state(f"partition {name}")
        self._partitions = set(shown)

    def _write_brokers(
        self,
        nodes: Sequence[Node],
        found: ClusterMetadata | None,
        partitions: Collection[PartitionMetadata],
    ) -> None:
        leads, replicas, behind = _count_replicas(partitions)
        listed = {} if found is None else found.brokers
        known = {node.id: node for node in nodes}
        for broker_id, address in listed.items():
            self._brokers[f"broker {broker_id}"] = f"{address.host}:{address.port}"
        for node in nodes:
            self._brokers[f"broker {node.id}"] = f"{node.host}:{node.port}"
        for name, address_text in self._brokers.items():
            broker_id = int(name.removeprefix("broker "))
            held = {"leads": leads[broker_id], "replicas": replicas[broker_id]}
            held["behind"] = behind[broker_id]
            word, reason = _read_process(known.get(broker_id))
            if word == "running" and found is not None:
                is_listed = broker_id in listed
                word, reason = _describe_broker(held, is_listed=is_listed, is_ours=bool(nodes))
            elif word == "running":
                continue  # the last state stands until a broker answers
            details: dict[str, Any] = {"address": address_text, **held}
            if broker_id in known:
                details["pid"] = known[broker_id].pid
            self._writer.set_state(name, word, reason, details)


def _read_process(node: Node | None) -> tuple[str, str]:
    """What the process of a node shows; `running` if it is not known."""
    if node is None:
        return "running", ""
    if not node.pid:
        return "dead", ""
    identity = ProcessIdentity.of(node.pid)
    return ("paused" if identity is not None and identity.is_paused() else "running"), ""


def _describe_broker(held: Mapping[str, int], *, is_listed: bool, is_ours: bool) -> tuple[str, str]:
    if not is_listed:
        return ("fenced" if is_ours else "missing"), "it is not in the metadata of the cluster"
    if held["behind"]:
        return "behind", f"not in sync for {held['behind']} of {held['replicas']} replicas"
    if held["replicas"]:
        return ("leads" if held["leads"] else "in sync"), ""
    return "running", ""


def _list_partitions(found: ClusterMetadata) -> dict[str, PartitionMetadata]:
    return {
        f"{topic.name}-{number}": partition
        for topic in found.topics.values()
        for number, partition in topic.partitions.items()
    }


def _count_replicas(
    partitions: Collection[PartitionMetadata],
) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """By broker: how many partitions it leads, has a replica of, and is not in sync for."""
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    for each in partitions:
        leads[each.leader] += 1
        replicas.update(each.replicas)
        behind.update(set(each.replicas) - set(each.isr))
    return leads, replicas, behind
