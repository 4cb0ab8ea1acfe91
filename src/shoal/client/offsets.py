"""Asking leaders for offsets: the first, the next, the youngest, or by time.

A broker that cannot tell yet (a new leader, an election) is asked again, partition by
partition, until `default.api.timeout.ms` is over.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from shoal.client.codes import Code
from shoal.client.core import Core
from shoal.client.errors import error_for
from shoal.client.fetching import isolation_number
from shoal.client.results import MAX_TIMESTAMP, ListedOffset
from shoal.client.silence import unless_replaced
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

_FIRST_VERSION_WITH_MAX_TIMESTAMP = 7
_FIRST_VERSION_WITH_ISOLATION = 2

Listed = dict[TopicPartition, ListedOffset]


async def list_offsets(
    core: Core, asked: Mapping[TopicPartition, int], *, isolation: str = "read_uncommitted"
) -> Listed:
    """The offset for each timestamp (ms) or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
    listed: Listed = {}
    number = isolation_number(isolation)
    for tp in asked:
        await core.leader(tp)  # waits for elections, and says so if a topic does not exist

    async def attempt() -> None:
        left = {tp: time for tp, time in asked.items() if tp not in listed}
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, time in left.items():
            by_leader.setdefault(await core.leader(tp), {})[tp] = time
        rounds = [_ask(core, node, part, number) for node, part in by_leader.items()]
        failures = []
        for answer in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                listed.update(answer[0])
                failures += answer[1]
        if failures:
            raise failures[0]

    await core.retrying(attempt)
    return listed


async def _ask(
    core: Core, node_id: int, asked: Mapping[TopicPartition, int], isolation: int
) -> tuple[Listed, list[Exception]]:
    cluster = core.cluster
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, time in asked.items():
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
    if MAX_TIMESTAMP in asked.values():
        at_least = _FIRST_VERSION_WITH_MAX_TIMESTAMP
    link = await core.pool.link(node_id)
    version = link.versions.newest(ApiKey.LIST_OFFSETS, at_least=at_least)
    answer = link.ask(ApiKey.LIST_OFFSETS, version, values, timeout_s=core.request_timeout_s)
    response = await unless_replaced(core, answer, (node_id, link.connection), asked)
    listed: Listed = {}
    failures: list[Exception] = []
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, int(part.partition_index))
            if part.error_code != Code.NONE:
                failures.append(error_for(int(part.error_code), topic=tp.topic, partition=tp[1]))
                continue
            listed[tp] = ListedOffset(
                int(part.offset), int(part.timestamp), int(getattr(part, "leader_epoch", -1))
            )
    return listed, failures
