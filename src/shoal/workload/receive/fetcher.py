"""Keeps one fetch in flight to every leader, also when brokers fail and leaders move.

Rules:
- Each leader has a task of its own: a slow or dead leader does not delay messages of other leaders.
- The next fetch is sent before the batches of the last one are decoded.
- `received_us` is taken as soon as a response has arrived.
- A partition is read from its leader, or from a nearer replica: `client.cluster.replica_choice`.
- A partition whose leader is lost is placed again, without a limit: the caller decides when to
  stop. A position outside the log is reset, and the caller is notified.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from shoal.client.client import Client
from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.client.codes import Code, facts_of
from shoal.client.errors import ClientError, error_for
from shoal.client.results import EARLIEST, LATEST
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited
from shoal.wire.fetch import FetchedPartition
from shoal.workload.receive.polls import PollRecorder
from shoal.workload.receive.reading import FoundBatch, LogReader
from shoal.workload.specs import FetchSettings

_log = logging.getLogger(__name__)

_RETRY_EVERY_S = 0.1

Receive = Callable[[list[FoundBatch], int], None]
OnReset = Callable[[TopicPartition], None]


class Fetcher:
    """Reads logs until it is cancelled, or until all logs are retired."""

    def __init__(
        self,
        client: Client,
        logs: LogReader,
        settings: FetchSettings,
        *,
        channel: str,
        receive: Receive,
        on_reset: OnReset,
        places: ReplicaSelector | None = None,
        polls: PollRecorder | None = None,
    ) -> None:
        self._client = client
        self._logs = logs
        self._settings = settings
        self._channel = channel
        self._receive = receive
        self._on_reset = on_reset
        max_age_s = client.config.metadata_max_age_ms / 1000
        self._places = places or ReplicaSelector(rack=settings.rack, max_age_s=max_age_s)
        self._polls = polls
        self._unplaced = set(logs.positions)
        self._placed: dict[int, set[TopicPartition]] = {}
        self._change = asyncio.Event()

    async def run(self) -> None:
        """Assign partitions to the tasks of their leaders, again whenever a leader is lost."""
        try:
            async with asyncio.TaskGroup() as fetchers:
                while self._unplaced or self._placed:
                    self._change.clear()
                    if self._unplaced:
                        await self._place(fetchers)
                    if not self._unplaced and self._placed:
                        await self._change.wait()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def retire(self, tp: TopicPartition) -> None:
        """Stop reading this log."""
        self._unplaced.discard(tp)
        for partitions in self._placed.values():
            partitions.discard(tp)

    async def _place(self, fetchers: asyncio.TaskGroup) -> None:
        """Assign every partition that has a leader to the task of that leader."""
        try:
            cluster = await self._client.metadata({tp.topic for tp in self._unplaced})
        except ClientError as error:
            if not error.retriable:
                raise
            _log.warning("cannot find the leaders of partitions, retrying: %s", error)
            await asyncio.sleep(_RETRY_EVERY_S)
            return
        for tp in sorted(self._unplaced):
            leader = self._places.node(cluster, tp, asyncio.get_running_loop().time())
            if leader is None:
                continue
            self._unplaced.discard(tp)
            if leader in self._placed:
                self._placed[leader].add(tp)
            else:
                self._placed[leader] = {tp}
                fetchers.create_task(self._fetch_loop(leader))
        if self._unplaced:
            self._client.invalidate_metadata()
            await asyncio.sleep(_RETRY_EVERY_S)

    async def _fetch_loop(self, node_id: int) -> None:
        """Fetch from one leader until none of its partitions is left."""
        fetch = self._start_fetch(node_id)
        try:
            while fetch is not None:
                try:
                    answers = await fetch
                except ClientError as error:
                    await self._on_node_lost(node_id, error)
                    fetch = self._start_fetch(node_id)
                    continue
                received_us = time.time_ns() // 1000
                if self._polls is not None:
                    self._note_ends(self._polls, answers, received_us)
                found = await self._advance(node_id, answers)
                fetch = self._start_fetch(node_id)
                # Lets the request be sent before decoding keeps the loop busy.
                await asyncio.sleep(0)
                if found:
                    self._receive(found, received_us)
        finally:
            if fetch is not None:
                fetch.cancel()
                await asyncio.gather(fetch, return_exceptions=True)
            del self._placed[node_id]
            self._change.set()

    def _start_fetch(
        self, node_id: int
    ) -> "asyncio.Task[dict[TopicPartition, FetchedPartition]] | None":
        positions = {tp: self._logs.positions[tp] for tp in sorted(self._placed[node_id])}
        if not positions:
            return None
        if self._polls is not None:
            self._polls.on_poll(positions, time.time_ns() // 1000)
        return run_awaited(
            "fetch",
            self._client.fetch_from(
                node_id,
                positions,
                max_wait_ms=self._settings.max_wait_ms,
                min_bytes=1,
                max_bytes=self._settings.max_bytes,
                partition_max_bytes=self._settings.partition_max_bytes,
                isolation=self._settings.isolation,
                channel=self._channel,
                rack_id=self._places.rack_for(
                    positions,
                    self._client.config.client_rack,
                    asyncio.get_running_loop().time(),
                ),
            ),
        )

    def _note_ends(
        self, polls: PollRecorder, answers: dict[TopicPartition, FetchedPartition], at_us: int
    ) -> None:
        sees_all = self._settings.isolation != "read_committed"
        for tp, answer in answers.items():
            if answer.error_code == Code.NONE:
                end = answer.high_watermark if sees_all else answer.last_stable_offset
                polls.on_log_end(tp, end, at_us)

    async def _advance(
        self, node_id: int, answers: dict[TopicPartition, FetchedPartition]
    ) -> list[FoundBatch]:
        found: list[FoundBatch] = []
        now = asyncio.get_running_loop().time()
        moved = self._places.apply_response(self._client.cluster, node_id, answers, now)
        for tp, answer in answers.items():
            if tp not in self._placed[node_id]:
                continue  # retired while the fetch was in flight
            if answer.error_code == Code.NONE:
                found += self._logs.advance(tp, answer)
            if tp in moved:
                self._unplace(node_id, tp)
            elif answer.error_code == Code.NONE:
                continue
            elif answer.error_code == Code.OFFSET_OUT_OF_RANGE:
                await self._reset(tp)
            else:
                self._on_partition_error(node_id, tp, answer.error_code)
        return found

    async def _reset(self, tp: TopicPartition) -> None:
        """Move a position that is outside the log to the start of the log, or to its end."""
        position = self._logs.positions[tp]
        first = (await self._client.list_offsets({tp: EARLIEST}))[tp].offset
        end = (await self._client.list_offsets({tp: LATEST}))[tp].offset
        if first <= position <= end:
            return  # records were appended, or a new leader was elected, in the meantime
        self._logs.positions[tp] = first if position < first else end
        _log.warning(
            "%s: offset %d is outside the log (%d to %d); continuing at %d",
            *(tp, position, first, end, self._logs.positions[tp]),
        )
        self._on_reset(tp)

    def _on_partition_error(self, node_id: int, tp: TopicPartition, code: int) -> None:
        if not facts_of(code).retriable:
            raise error_for(code, topic=tp.topic, partition=tp.partition)
        self._client.invalidate_metadata()
        self._unplace(node_id, tp)

    def _unplace(self, node_id: int, tp: TopicPartition) -> None:
        self._placed[node_id].discard(tp)
        self._unplaced.add(tp)
        self._change.set()

    async def _on_node_lost(self, node_id: int, error: ClientError) -> None:
        if not error.retriable:
            raise error
        _log.warning("fetch from node %d failed, retrying: %s", node_id, error)
        self._client.invalidate_metadata()
        await asyncio.sleep(_RETRY_EVERY_S)
        for tp in self._placed[node_id]:
            if self._client.cluster.leader(tp) != node_id:
                self._places.avoid(tp, asyncio.get_running_loop().time())
        self._unplaced |= self._placed[node_id]
        self._placed[node_id].clear()
        self._change.set()
