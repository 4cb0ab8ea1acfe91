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
- `fetch_in_session` is one fetch of a session (`shoal.client.consume.fetch_session`): its cost
  depends on the partitions that changed, not on all of them.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.cluster.router import Core
from shoal.client.codes import INVALIDATES_METADATA, Code
from shoal.client.consume.fetch_session import (
    FINAL_EPOCH,
    Fetched,
    FetchSession,
    SessionRequest,
)
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
    NO_SESSION_ID,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)

# The leader names a replica, the replica cannot be read, the leader returns the records.
_MOST_ROUNDS: Final = 3
# A session that the broker does not have, and the one that replaces it.
_MOST_SESSIONS: Final = 2
_ISOLATION: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


class FetchLimits(NamedTuple):
    """How long to wait and how much to return."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    isolation: str


_NO_WAIT: Final = FetchLimits(0, 0, 0, 0, "read_uncommitted")


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
    wanted = [
        partition_at(core.cluster, tp, offset, limits.partition_max_bytes)
        for tp, offset in positions.items()
    ]
    has_ids = all(part.topic_id is not None for part in wanted)
    request = _FetchCall(limits, _version(link, has_ids=has_ids), rack_id)
    alone = SessionRequest(NO_SESSION_ID, FINAL_EPOCH, wanted, [])
    response = await request.send(core, (node_id, link), alone, positions)
    if response.error_code != Code.NONE:
        raise error_for(response.error_code)
    fetched = _by_partition(response, wanted)
    _notice_stale_metadata(core, fetched)
    return fetched


async def fetch_in_session(
    core: Core,
    node_id: int,
    session: FetchSession,
    *,
    limits: FetchLimits,
    channel: str = FETCH,
    rack_id: str | None = None,
) -> Fetched:
    """One fetch of a session; returns the partitions with news. Raises as `fetch_from` does.

    If the broker does not have the session, all partitions are sent once more.
    """
    link = await core.pool.link(node_id, channel)
    call = _FetchCall(limits, _version(link, has_ids=session.has_ids), rack_id)
    uses_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for _ in range(_MOST_SESSIONS):
        request = session.next_request(uses_ids=uses_ids)
        try:
            response = await call.send(core, (node_id, link), request, session.partitions)
            fetched = session.on_answer(response)
        except BaseException:
            session.reset()  # the broker may have processed the request, or not
            raise
        if fetched is None:
            continue
        if response.error_code != Code.NONE:
            session.reset()
            break
        _notice_stale_metadata(core, fetched)
        return fetched
    raise error_for(response.error_code)


async def end_fetch_session(
    core: Core, node_id: int, session: FetchSession, *, channel: str
) -> None:
    """Free the broker's memory of a session; without one nothing is sent."""
    request = session.end()
    if request is None:
        return
    link = await core.pool.link(node_id, channel)
    call = _FetchCall(_NO_WAIT, _version(link, has_ids=session.has_ids), "")
    await call.send(core, (node_id, link), request, ())


class _FetchCall(NamedTuple):
    """A fetch request without its partitions."""

    limits: FetchLimits
    version: int
    rack_id: str | None

    async def send(
        self,
        core: Core,
        broker: tuple[int, Link],
        request: SessionRequest,
        watched: Collection[TopicPartition],
    ) -> FetchResponse:
        """Send it; `ConnectionLost` if other brokers lead the `watched` partitions meanwhile."""
        limits, version, (node_id, link) = self.limits, self.version, broker
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
                    rack_id=core.config.client_rack if self.rack_id is None else self.rack_id,
                    **request._asdict(),
                ),
            ),
            name=f"FETCH v{version}",
            timeout_s=core.request_timeout_s + limits.max_wait_ms / 1000,
        )
        pause_s = limits.max_wait_ms / 1000
        place = (node_id, link.connection)
        answer = await await_unless_replaced(core, asked, place, watched, pause_s=pause_s)
        return decode_fetch_response(version, answer)


def _notice_stale_metadata(core: Core, fetched: Fetched) -> None:
    if any(_shows_stale_metadata(core.cluster, part) for part in fetched.values()):
        core.invalidate_metadata()


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


def partition_at(
    cluster: ClusterMetadata, tp: TopicPartition, offset: int, max_bytes: int
) -> FetchPartition:
    """A partition in a fetch request, with the topic id and leader epoch that are known."""
    topic = cluster.topics.get(tp.topic)
    partition = topic.partitions.get(tp.partition) if topic is not None else None
    return FetchPartition(
        tp.topic,
        topic.topic_id if topic is not None else None,
        tp.partition,
        offset,
        max_bytes,
        partition.leader_epoch if partition is not None else -1,
    )


def _version(link: Link, *, has_ids: bool) -> int:
    newest = FETCH_VERSIONS[-1] if has_ids else FIRST_VERSION_WITH_TOPIC_IDS - 1
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
