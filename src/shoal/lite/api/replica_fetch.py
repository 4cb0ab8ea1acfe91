"""A follower's fetch: what it asks for says what it has.

Rules of this file:
- The leader hears of each fetch once, when it arrives; what it says about it (`FetchVerdict`)
  stands for as long as the fetch is held.
- A fetch is held until there are records for any of its partitions; what goes wrong with one is
  answered at once.
- News of the high watermark alone are held for a moment where records flow: these bring it
  along, and an answer for every commit would double the requests. Elsewhere they leave at once.
- If the leadership has changed while a fetch was held, nothing is given.
"""

import asyncio
from dataclasses import dataclass

from shoal.lite.api.fetch_answers import Fetched, as_records, encoded, failed
from shoal.lite.api.registry import Answer, Request
from shoal.lite.codes import Code, Refused
from shoal.lite.core import BrokerCore
from shoal.lite.log.slices import NOTHING
from shoal.lite.partition import Partition, monotonic_ms
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import ReplicaFetch
from shoal.wire.fetch import EpochEnd, FetchPartition, FetchRequest, PartitionAnswer

_FIRST_VERSION_WITH_TOPIC_IDS = 13
# Short: whoever is left alone with too few in sync can only serve what it knows to be committed.
_NEWS_PATIENCE_MS = 5


@dataclass(slots=True)
class _Item:
    """A partition that is asked for; `answer` is there once nothing is to be read for it."""

    asked: FetchPartition
    partition: Partition | None = None
    leader: LeaderPartition | None = None
    leader_epoch: int = -1
    answer: Fetched | None = None


def answer_replica(
    core: BrokerCore, request: Request, fetch: FetchRequest, wait_ms: int
) -> "Answer | asyncio.Future[Answer]":
    held = _HeldFetch(request, fetch, [_judged(core, request, fetch, p) for p in fetch.partitions])
    if wait_ms <= 0 or held.has_records():
        return held.answer()
    return held.wait(wait_ms)


def _judged(
    core: BrokerCore, request: Request, fetch: FetchRequest, asked: FetchPartition
) -> _Item:
    uses_ids = request.version >= _FIRST_VERSION_WITH_TOPIC_IDS
    try:
        name = core.topic_name(asked.topic_id) if uses_ids else asked.topic
        partition = core.partition(name, asked.partition)
        leader = partition.leader
    except Refused as refused:
        return _Item(asked, answer=failed(asked, refused.code))
    position = ReplicaFetch(
        asked.offset, asked.leader_epoch, asked.last_fetched_epoch, asked.log_start_offset
    )
    verdict = leader.follower_fetched(
        monotonic_ms(), fetch.replica_id, position, broker_epoch=fetch.replica_epoch
    )
    partition.settle()
    item = _Item(asked, partition, leader, leader.leader_epoch)
    if verdict.code != Code.NONE:
        item.answer = failed(asked, verdict.code, verdict.log_start_offset)
    elif verdict.diverging is not None:
        item.answer = PartitionAnswer(
            asked.topic,
            asked.topic_id,
            asked.partition,
            high_watermark=verdict.high_watermark,
            last_stable_offset=verdict.high_watermark,
            log_start_offset=verdict.log_start_offset,
            diverging_epoch=EpochEnd(*verdict.diverging),
        )
    return item


class _HeldFetch:
    """A fetch, and what was said about it. A waiter of each of its partitions."""

    def __init__(self, request: Request, fetch: FetchRequest, items: list[_Item]) -> None:
        self._request = request
        self._fetch = fetch
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Answer] | None = None
        self._is_finishing = False
        self._left_bytes = fetch.max_bytes

    def has_records(self) -> bool:
        """Or anything else that does not wait."""
        for item in self._items:
            if item.answer is not None or item.partition is None:
                return True
            if item.asked.offset < item.partition.log.end_offset:
                return True
        return False

    def _news_patience_s(self) -> float | None:
        """How long news may be held: until the next records, if those come as fast as the last
        ones. None if there are no news."""
        follower = self._fetch.replica_id
        gaps_ms = [
            item.partition.write_gap_ms
            for item in self._items
            if item.partition and item.leader and item.leader.has_news_for(follower)
        ]
        if not gaps_ms:
            return None
        return _NEWS_PATIENCE_MS / 1000 if min(gaps_ms) <= _NEWS_PATIENCE_MS else 0.0

    def wait(self, wait_ms: int) -> "asyncio.Future[Answer]":
        future = self._future = self._loop.create_future()
        wait_s = wait_ms / 1000
        patience_s = self._news_patience_s()
        if patience_s is not None:
            wait_s = min(wait_s, patience_s)
        self._timer = self._loop.call_later(wait_s, self._finish)
        partitions = [item.partition for item in self._items if item.partition is not None]

        def leave(_: object) -> None:
            self._timer.cancel()
            for partition in partitions:
                partition.followers.discard(self)

        for partition in partitions:
            partition.followers.add(self)
        # Also when the follower has gone and the connection cancels the future.
        future.add_done_callback(leave)
        return future

    def on_more(self, size_bytes: int) -> None:
        if size_bytes:
            self.on_gone()
        elif not self._is_finishing and (patience_s := self._news_patience_s()) is not None:
            soon_s = self._loop.time() + patience_s
            if self._timer.when() > soon_s:
                self._timer.cancel()
                self._timer = self._loop.call_at(soon_s, self._finish)

    def on_gone(self) -> None:
        if not self._is_finishing:
            self._is_finishing = True
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(self.answer())

    def answer(self) -> Answer:
        return encoded(self._request, [item.answer or self._given(item) for item in self._items])

    def _given(self, item: _Item) -> Fetched:
        asked, partition, leader = item.asked, item.partition, item.leader
        assert partition is not None  # noqa: S101 - for the type checker
        assert leader is not None  # noqa: S101
        is_current = partition.replica.role is leader and leader.leader_epoch == item.leader_epoch
        if not is_current:
            return failed(asked, Code.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if asked.offset < log.start_offset:
            # Deleted while the fetch was held.
            return failed(asked, Code.OFFSET_OUT_OF_RANGE, log.start_offset)
        try:
            records = NOTHING
            if self._left_bytes > 0:
                max_bytes = min(asked.max_bytes, self._left_bytes)
                records = log.read(
                    asked.offset, max_bytes, upper_offset=log.end_offset, keeps_units=True
                )
                self._left_bytes -= len(records)
        except Refused as refused:
            return failed(asked, refused.code)
        leader.told(self._fetch.replica_id, leader.high_watermark)
        return PartitionAnswer(
            asked.topic,
            asked.topic_id,
            asked.partition,
            high_watermark=leader.high_watermark,
            last_stable_offset=leader.high_watermark,
            log_start_offset=log.start_offset,
            records=as_records(records),
        )
