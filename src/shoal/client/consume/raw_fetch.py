"""Raw fetch: record sets as brokers send them, not decoded.

Rules of this file:
- Errors of partitions are returned in the result; an unreachable leader is NETWORK_EXCEPTION (13)
  for each of its partitions, so that one dead broker does not stop the others.
- An error that shows stale metadata invalidates it, and so does an unknown preferred replica.
- `fetch` follows preferred replicas, and falls back to the leader if one cannot be read, within
  one call (`shoal.client.cluster.replica_choice`). Callers of `fetch_from` do that themselves.
- Topics are identified by their id where broker and metadata allow it (Fetch 13 and later): then a
  topic that was deleted and created again gives an error, not records of another topic.
- Record sets are views into the frame of the response, which stays in memory with them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.cluster.router import Core
from shoal.client.codes import INVALIDATES_METADATA, Code
from shoal.client.errors import ConnectionLost, RequestTimedOut, error_for
from shoal.client.transport.handshake import Link
from shoal.client.transport.pool import FETCH
from shoal.client.transport.replaced_broker import await_unless_replaced
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import (
    FETCH_VERSIONS,
    FIRST_VERSION_WITH_TOPIC_IDS,
    NO_REPLICA,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)

Fetched = dict[TopicPartition, FetchedPartition]

# The leader names a replica, the replica cannot be read, the leader returns the records.
_MOST_ROUNDS: Final = 3
_ISOLATION: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


class FetchLimits(NamedTuple):
    """How long to wait and how much to return."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    isolation: str


async def fetch_from(
    core: Core,
    node_id: int,
    positions: Mapping[TopicPartition, int],
    *,
    limits: FetchLimits,
    channel: str = FETCH,
    rack_id: str | None = None,
) -> Fetched:
    """One fetch from one broker; raises if the broker does not answer.

    `rack_id` is the client's by default; with an empty one a leader returns the records itself.
    """
    link = await core.pool.link(node_id, channel)
    wanted = _fetch_partitions(core.cluster, positions, limits.partition_max_bytes)
    version = _version(link, wanted)
    isolation = isolation_number(limits.isolation)
    asked = link.connection.submit(
        lambda correlation_id: (
            encode_fetch_request(
                version,
                correlation_id=correlation_id,
                client_id=link.client_id,
                max_wait_ms=limits.max_wait_ms,
                min_bytes=limits.min_bytes,
                max_bytes=limits.max_bytes,
                isolation=isolation,
                partitions=wanted,
                rack_id=core.config.client_rack if rack_id is None else rack_id,
            ),
        ),
        name=f"FETCH v{version}",
        timeout_s=core.request_timeout_s + limits.max_wait_ms / 1000,
    )
    broker = (node_id, link.connection)
    pause_s = limits.max_wait_ms / 1000
    answer = await await_unless_replaced(core, asked, broker, positions, pause_s=pause_s)
    response = decode_fetch_response(version, answer)
    if response.error_code != Code.NONE:
        raise error_for(response.error_code)
    fetched = _by_partition(response, wanted)
    if any(_shows_stale_metadata(core.cluster, part) for part in fetched.values()):
        core.invalidate_metadata()
    return fetched


def _shows_stale_metadata(cluster: ClusterMetadata, part: FetchedPartition) -> bool:
    """Whether a response shows that the metadata is out of date."""
    replica = part.preferred_read_replica
    return part.error_code in INVALIDATES_METADATA or (
        replica != NO_REPLICA and replica not in cluster.brokers
    )


async def fetch(
    core: Core,
    positions: Mapping[TopicPartition, int],
    *,
    limits: FetchLimits,
    channel: str = FETCH,
) -> Fetched:
    """Fetch from all leaders at once, or from the replicas that they name."""
    fetched: Fetched = {}
    left = dict(positions)
    for _ in range(_MOST_ROUNDS):
        found, moved = await _fetch_round(core, left, limits=limits, channel=channel)
        fetched |= found
        left = {tp: positions[tp] for tp in moved}
        if not left:
            break
    return fetched


async def _fetch_round(
    core: Core, positions: Mapping[TopicPartition, int], *, limits: FetchLimits, channel: str
) -> tuple[Fetched, set[TopicPartition]]:
    """The results, and the partitions to fetch from another broker."""
    cluster = await core.metadata({tp.topic for tp in positions})
    now = asyncio.get_running_loop().time()
    by_node: dict[int, dict[TopicPartition, int]] = {}
    fetched: Fetched = {}
    for tp, offset in positions.items():
        node = core.replica_selector.node(cluster, tp, now)
        if node is None:
            fetched[tp] = _error_partition(tp, cluster.leader_error(tp))
            core.invalidate_metadata()
        else:
            by_node.setdefault(node, {})[tp] = offset
    answers = await asyncio.gather(
        *(
            _fetch_or_errors(core, node, part, limits=limits, channel=channel)
            for node, part in by_node.items()
        )
    )
    moved: set[TopicPartition] = set()
    now = asyncio.get_running_loop().time()
    for node, answer in zip(by_node, answers, strict=True):
        fetched.update(answer)
        moved |= core.replica_selector.apply_response(core.cluster, node, answer, now)
    return fetched, moved


def isolation_number(name: str) -> int:
    """Kafka's number of an isolation level."""
    if name not in _ISOLATION:
        raise UsageError(f"isolation must be one of {', '.join(_ISOLATION)}, not {name!r}")
    return _ISOLATION[name]


async def _fetch_or_errors(
    core: Core,
    node_id: int,
    positions: Mapping[TopicPartition, int],
    *,
    limits: FetchLimits,
    channel: str,
) -> Fetched:
    now = asyncio.get_running_loop().time()
    rack_id = core.replica_selector.rack_for(positions, core.config.client_rack, now)
    try:
        return await fetch_from(
            core, node_id, positions, limits=limits, channel=channel, rack_id=rack_id
        )
    except (ConnectionLost, RequestTimedOut):
        core.invalidate_metadata()
        return {tp: _error_partition(tp, Code.NETWORK_EXCEPTION) for tp in positions}


def _fetch_partitions(
    cluster: ClusterMetadata, positions: Mapping[TopicPartition, int], max_bytes: int
) -> list[FetchPartition]:
    wanted = []
    for tp, offset in positions.items():
        topic = cluster.topics.get(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        wanted.append(
            FetchPartition(
                tp.topic,
                topic.topic_id if topic is not None else None,
                tp.partition,
                offset,
                max_bytes,
                partition.leader_epoch if partition is not None else -1,
            )
        )
    return wanted


def _version(link: Link, wanted: Sequence[FetchPartition]) -> int:
    newest = FETCH_VERSIONS[-1]
    if any(part.topic_id is None for part in wanted):
        newest = FIRST_VERSION_WITH_TOPIC_IDS - 1
    return link.versions.newest(ApiKey.FETCH, at_least=FETCH_VERSIONS[0], at_most=newest)


def _by_partition(response: FetchResponse, wanted: Sequence[FetchPartition]) -> Fetched:
    names: dict[UUID | None, str] = {part.topic_id: part.topic for part in wanted}
    fetched: Fetched = {}
    for part in response.partitions:
        named = part if part.topic else part._replace(topic=names.get(part.topic_id, ""))
        fetched[TopicPartition(named.topic, named.partition)] = named
    for asked in wanted:
        tp = TopicPartition(asked.topic, asked.partition)
        if tp not in fetched:
            fetched[tp] = _error_partition(tp, Code.UNKNOWN_SERVER_ERROR)
    return fetched


def _error_partition(tp: TopicPartition, code: int) -> FetchedPartition:
    return FetchedPartition(tp.topic, None, tp.partition, error_code=code)
