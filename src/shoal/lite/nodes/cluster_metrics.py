"""The metrics of a whole cluster, and the endpoint of a supervisor or of a single broker.

Rules of this file:
- Cluster-wide series come from one state of the metadata: that of the controller in the
  supervisor, or of the broker that has applied the most records.
- While a leader or a coordinator changes, two brokers may answer for one partition or group. The
  larger value counts: offsets only grow, and a page must not name a series twice.
- A supervisor asks its brokers at each scrape, over the private channel. A broker that does not
  answer in time (paused, ended) is left out, and `shoal_broker_up` is 0.
- Of single brokers (`shoal broker`), the one with the lowest id among the active ones exposes the
  cluster-wide series.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from shoal.lite.base.spec import BrokerSpec
from shoal.lite.broker.core import BrokerCore
from shoal.lite.metadata.data.records import NO_LEADER
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.nodes.broker_metrics import BrokerCollector, correct_lags
from shoal.telemetry.dialects.kafka_exporter import KAFKA_EXPORTER
from shoal.telemetry.dialects.strimzi import make_strimzi
from shoal.telemetry.endpoint import gather_chunks, make_port
from shoal.telemetry.http_port import EndpointSpec, HttpPort
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of, merge, one

ANSWER_TIMEOUT_S: Final = 5.0
_OFFSET: Final = "shoal_broker_metadata_offset"


def collect_state(state: ClusterState) -> Iterator[Chunk]:
    """The cluster-wide series of the metadata."""
    yield one("shoal_cluster_info", 1, state.cluster_id)
    yield one("shoal_brokers", len(state.brokers))
    yield one("shoal_brokers_active", len(state.active_brokers()))
    yield one("shoal_topics", len(state.topics))
    yield one("shoal_unclean_leader_elections_total", state.unclean_elections)
    infos = [
        ((str(each.broker_id), f"{each.host}:{each.port}", each.rack or ""), 1)
        for each in state.brokers.values()
    ]
    yield from chunks_of("shoal_broker_info", infos)
    counts = [((name,), len(topic.partitions)) for name, topic in state.topics.items()]
    yield from chunks_of("shoal_topic_partitions", counts)
    yield from _collect_partitions(state)


def _collect_partitions(state: ClusterState) -> Iterator[Chunk]:
    names = ("leader", "replicas", "in_sync_replicas", "min_isr", "leader_is_preferred")
    columns: dict[str, list[Sample]] = {f"shoal_partition_{name}": [] for name in names}
    offline = lacking = below = at_least = 0
    for record in [*state.partitions()]:
        topic = state.topic_names.get(record.topic_id)
        if topic is None:
            continue
        in_sync, replicas, least = (
            len(record.in_sync), len(record.replicas), state.min_insync(record)
        )  # fmt: skip
        offline += record.leader == NO_LEADER
        lacking += in_sync < replicas
        below += in_sync < least
        at_least += in_sync == least
        labels = (topic, str(record.partition))
        is_preferred = int(record.leader == record.replicas[0])
        values = (record.leader, replicas, in_sync, least, is_preferred)
        for (name, samples), value in zip(columns.items(), values, strict=True):
            samples.append((labels, value))
            if len(samples) >= 500:
                yield name, [*samples]
                samples.clear()
    for name, samples in columns.items():
        yield name, samples
    yield one("shoal_offline_partitions", offline)
    yield one("shoal_under_replicated_partitions", lacking)
    yield one("shoal_under_min_isr_partitions", below)
    yield one("shoal_at_min_isr_partitions", at_least)


def collect_quorum(quorum: Mapping[str, Any] | None) -> Iterator[Chunk]:
    """The series of the controllers, from the JSON of `shoal cluster status`."""
    yield one("shoal_controller_active", -1 if quorum is None else quorum["leader"])
    if quorum is None:
        return
    yield one("shoal_controller_epoch", quorum["epoch"])
    yield one("shoal_controller_high_watermark", quorum["high_watermark"])
    ends = [((str(each["id"]),), each["log_end_offset"]) for each in quorum["voters"]]
    yield from chunks_of("shoal_controller_log_end_offset", ends)


class MetricsSource(Protocol):
    """A broker's process, as the endpoint of its supervisor sees it."""

    async def collect(self, what: str) -> Iterable[Chunk]:
        """`broker`: its own series; `cluster`: those of the metadata that it knows."""


class ClusterEndpoint:
    """The endpoint of a supervisor."""

    def __init__(
        self,
        spec: EndpointSpec,
        *,
        brokers: Callable[[], Mapping[int, MetricsSource | None]],
        state: Callable[[], ClusterState | None],
        quorum: Callable[[], Awaitable[dict[str, Any] | None]],
    ) -> None:
        """`brokers` returns all brokers, None for those that do not run; `state` returns the
        metadata if this process has it."""
        self._brokers = brokers
        self._state = state
        self._quorum = quorum
        dialects = {"kafka-exporter": KAFKA_EXPORTER, "strimzi": make_strimzi()}
        self.port = make_port(spec, self.collect, self._why_not_ready, dialects)

    async def collect(self) -> Families:
        brokers = self._brokers()
        running = {one_id: each for one_id, each in brokers.items() if each is not None}
        answers = await asyncio.gather(*(_ask(each, "broker") for each in running.values()))
        answered = {
            one_id: chunks
            for one_id, chunks in zip(running, answers, strict=True)
            if chunks is not None
        }
        families: Families = {}
        for chunks in answered.values():
            merge(families, chunks)
            await asyncio.sleep(0)
        for name, samples in families.items():
            families[name] = keep_largest(samples)
            await asyncio.sleep(0)
        merge(families, _up(brokers, answered))
        merge(families, await self._cluster_wide(families, running))
        correct_lags(families)
        return families

    async def _cluster_wide(
        self, families: Families, running: Mapping[int, MetricsSource]
    ) -> list[Chunk]:
        chunks: list[Chunk] = []
        state = self._state()
        if state is not None:
            for chunk in collect_state(state):
                chunks.append(chunk)
                await asyncio.sleep(0)
        else:
            known = families.get(_OFFSET, ())
            newest = max(known, key=lambda sample: sample[1], default=None)
            if newest is not None:
                chunks += await _ask(running[int(newest[0][0])], "cluster") or []
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                chunks += collect_quorum(await self._quorum())
        except TimeoutError:
            chunks += collect_quorum(None)
        return chunks

    async def _why_not_ready(self) -> str | None:
        down = [one_id for one_id, each in self._brokers().items() if each is None]
        return f"these brokers do not run: {', '.join(map(str, down))}" if down else None


def keep_largest(samples: list[Sample]) -> list[Sample]:
    """One sample of each series: the largest."""
    largest: dict[tuple[str, ...], Any] = {}
    for labels, value in samples:
        key = tuple(labels)
        if key not in largest or value > largest[key]:
            largest[key] = value
    return samples if len(largest) == len(samples) else [*largest.items()]


def _up(brokers: Iterable[int], serving: Collection[int]) -> Iterator[Chunk]:
    samples = [((str(broker_id),), int(broker_id in serving)) for broker_id in sorted(brokers)]
    return chunks_of("shoal_broker_up", samples)


async def _ask(source: MetricsSource, what: str) -> list[Chunk] | None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return [*await source.collect(what)]
    except (TimeoutError, ConnectionError):
        return None


def single_broker_port(
    spec: EndpointSpec, node: BrokerSpec, core: BrokerCore, collector: BrokerCollector
) -> HttpPort:
    """The endpoint of one broker of a cluster over several hosts."""

    async def collect() -> Families:
        families = await gather_chunks(collector.collect())
        active = core.state.live_epochs()
        if node.broker_id == min(active, default=node.broker_id):
            merge(families, (await gather_chunks(collect_state(core.state))).items())
            merge(families, _up(core.state.brokers, active))
            leader = core.controller.active
            merge(
                families,
                [
                    one("shoal_controller_active", -1 if leader is None else leader.node_id),
                    one("shoal_controller_epoch", core.controller.epoch),
                    one("shoal_controller_high_watermark", core.controller.high_watermark),
                ],
            )
        correct_lags(families)
        return families

    async def why_not_ready() -> str | None:
        is_active = core.state.is_active(node.broker_id)
        return None if is_active else f"broker {node.broker_id} is fenced"

    dialects = {"kafka-exporter": KAFKA_EXPORTER, "strimzi": make_strimzi()}
    return make_port(spec, collect, why_not_ready, dialects)
