"""ListOffsets: the earliest, the latest, or by timestamp.

A partition whose leader cannot answer yet (a new leader, an election) is retried until
`default.api.timeout.ms` has passed. `list_offsets` requires an answer for every partition;
`list_offsets_or_errors` returns the offsets it got and the errors of the other partitions, so that
a partition without a leader does not block the others.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.consume.raw_fetch import isolation_number
from shoal.client.errors import ClientError, KafkaError, RequestTimedOut, error_for
from shoal.client.results import MAX_TIMESTAMP, ListedOffset
from shoal.client.transport.backoff import Backoff
from shoal.client.transport.replaced_broker import await_unless_replaced
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

_FIRST_VERSION_WITH_MAX_TIMESTAMP = 7
_FIRST_VERSION_WITH_ISOLATION = 2

ListedOffsets = dict[TopicPartition, ListedOffset]
PartitionErrors = dict[TopicPartition, ClientError]


class OffsetsAndErrors(NamedTuple):
    """Offsets by partition, and the errors of the other partitions."""

    offsets: ListedOffsets
    errors: PartitionErrors


async def list_offsets(
    core: Core, requested: Mapping[TopicPartition, int], *, isolation: str = "read_uncommitted"
) -> ListedOffsets:
    """The offset for each timestamp (ms) or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
    listed: ListedOffsets = {}
    number = isolation_number(isolation)
    for tp in requested:
        await core.leader(tp)  # waits for elections; raises if a topic does not exist

    async def attempt() -> None:
        left = {tp: time for tp, time in requested.items() if tp not in listed}
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, time in left.items():
            by_leader.setdefault(await core.leader(tp), {})[tp] = time
        rounds = [_request_offsets(core, node, part, number) for node, part in by_leader.items()]
        failures = []
        for answer in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                listed.update(answer[0])
                failures += answer[1].values()
        if failures:
            raise failures[0]

    await core.with_retries(attempt)
    return listed


async def list_offsets_or_errors(
    core: Core,
    requested: Mapping[TopicPartition, int],
    *,
    isolation: str = "read_uncommitted",
    timeout_s: float,
) -> OffsetsAndErrors:
    """As `list_offsets`, but partitions without an answer in time are in `errors`."""
    number = isolation_number(isolation)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = Backoff(core.config.retry_backoff_ms, core.config.retry_backoff_max_ms)
    found = OffsetsAndErrors({}, {})
    left = dict(requested)
    while left:
        remaining_s = max(0.05, deadline - loop.time())
        offsets, errors = await _request_from_leaders(core, left, number, remaining_s)
        found.offsets.update(offsets)
        found.errors.update(errors)
        left = {tp: left[tp] for tp, error in errors.items() if error.retriable}
        wait_s = backoff.next_wait_s()
        if not left or loop.time() + wait_s >= deadline:
            break
        core.invalidate_metadata()
        await asyncio.sleep(wait_s)
    for tp in found.offsets:
        found.errors.pop(tp, None)
    return found


async def _request_from_leaders(
    core: Core, requested: Mapping[TopicPartition, int], isolation: int, timeout_s: float
) -> OffsetsAndErrors:
    """One round over all leaders; a leader that does not answer fails its own partitions."""
    found = OffsetsAndErrors({}, {})
    try:
        async with asyncio.timeout(timeout_s):
            cluster = await core.metadata({tp.topic for tp in requested})
    except (ClientError, TimeoutError) as error:
        found.errors.update(_errors_for(requested, error))
        return found
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, time in requested.items():
        leader = cluster.leader(tp)
        if leader is None:
            found.errors[tp] = error_for(
                cluster.leader_error(tp), topic=tp.topic, partition=tp.partition
            )
        else:
            by_leader.setdefault(leader, {})[tp] = time

    async def ask(node_id: int, part: Mapping[TopicPartition, int]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                offsets, errors = await _request_offsets(core, node_id, part, isolation)
        except (ClientError, TimeoutError) as error:
            found.errors.update(_errors_for(part, error, node_id))
        else:
            found.offsets.update(offsets)
            found.errors.update(errors)

    await asyncio.gather(*(ask(node_id, part) for node_id, part in by_leader.items()))
    return found


def _errors_for(
    partitions: Iterable[TopicPartition], error: Exception, node_id: int | None = None
) -> PartitionErrors:
    who = "the cluster" if node_id is None else f"broker {node_id}"
    if not isinstance(error, ClientError):
        error = RequestTimedOut(f"{who} does not answer", sent=True)
    return dict.fromkeys(partitions, error)


async def _request_offsets(
    core: Core, node_id: int, requested: Mapping[TopicPartition, int], isolation: int
) -> tuple[ListedOffsets, dict[TopicPartition, KafkaError]]:
    cluster = core.cluster
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, time in requested.items():
        partition = cluster.partition(tp)
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "timestamp": time,
                "current_leader_epoch": partition.leader_epoch if partition is not None else -1,
            }
        )
    values = {
        "replica_id": -1,
        "isolation_level": isolation,
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        "timeout": core.config.request_timeout_ms,
    }
    at_least = _FIRST_VERSION_WITH_ISOLATION if isolation else 1
    if MAX_TIMESTAMP in requested.values():
        at_least = _FIRST_VERSION_WITH_MAX_TIMESTAMP
    link = await core.pool.link(node_id)
    version = link.versions.newest(ApiKey.LIST_OFFSETS, at_least=at_least)
    answer = link.ask(ApiKey.LIST_OFFSETS, version, values, timeout_s=core.request_timeout_s)
    response = await await_unless_replaced(core, answer, (node_id, link.connection), requested)
    listed: ListedOffsets = {}
    failures: dict[TopicPartition, KafkaError] = {}
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, int(part.partition_index))
            if part.error_code != Code.NONE:
                failures[tp] = error_for(int(part.error_code), topic=tp.topic, partition=tp[1])
                continue
            listed[tp] = ListedOffset(
                int(part.offset), int(part.timestamp), int(getattr(part, "leader_epoch", -1))
            )
    return listed, failures
