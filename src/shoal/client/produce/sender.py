"""Batches of many partitions on their way: the shell around `delivery`.

Rules of this file:
- `PartitionLine` decides what may be sent and what is decided; this file finds leaders, fills
  requests, keeps time and hands results out. All partitions of a leader share its requests.
- `_pump` never waits. Whatever it lacks (a leader, a connection, an identity) is fetched by a
  task that pumps again when it is done; so there is no loop that polls.
- Results are futures that never fail: an outcome is always one of ok, failed, unknown.
- At most `buffer.memory` bytes wait for an outcome; `hand_over` waits in line above that.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientClosed, ClientError
from shoal.client.produce.raw_produce import Produced, submit_produce
from shoal.client.produce.sequencing import Identity, Mode, Parcel, PartitionLine
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.client.transport.handshake import Link
from shoal.client.transport.pool import PRODUCE
from shoal.model.errors import ShoalError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_once
from shoal.wire.batch import Batch

Result = asyncio.Future[ProduceResult]


class Sender:
    """Sends batches until each has an outcome."""

    def __init__(
        self,
        core: Core,
        mode: Mode,
        *,
        get_identity: Callable[[], Awaitable[Identity]] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self._core = core
        self._mode = mode
        self._get_identity = get_identity
        self._transactional_id = transactional_id
        self._lines: dict[TopicPartition, PartitionLine] = {}
        # Those with batches.
        self._active: dict[TopicPartition, PartitionLine] = {}
        self._results: dict[Parcel, Result] = {}
        self._identity: Identity | None = None
        self._requests: dict[int, int] = {}
        # The connection that carries a partition's batches in flight.
        self._carriers: dict[TopicPartition, Link] = {}
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(core.config.retry_backoff_ms, core.config.retry_backoff_max_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._closed: ClientError | None = None
        # Told of every batch that ends as anything but ok.
        self.on_failure: Callable[[Parcel], None] | None = None

    @property
    def unfinished(self) -> int:
        """Batches without an outcome."""
        return len(self._results)

    async def hand_over(
        self,
        tp: TopicPartition,
        batch: Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Wait for room, then take a batch on; returns the future of its outcome."""
        size = batch.size
        if self._bytes and (self._waiting or self._bytes + size > self._limit):
            await self._wait_for_room(size)
            self._bytes -= size  # kept for us while we woke up
        return self.submit(tp, batch, timeout_s=timeout_s, retries=retries)

    def submit(
        self,
        tp: TopicPartition,
        batch: Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Take a batch on now, whatever the room; by default for `delivery.timeout.ms`."""
        loop = asyncio.get_running_loop()
        result: Result = loop.create_future()
        if self._closed is not None:
            result.set_result(_gave_up(self._closed))
            return result
        if timeout_s is None:
            timeout_s = self._core.config.delivery_timeout_ms / 1000
        parcel = Parcel(tp, batch, deadline=loop.time() + timeout_s, retries=retries)
        self._results[parcel] = result
        self._bytes += batch.size
        line = self._line(tp)
        line.add(parcel)
        self._active[tp] = line
        # Soon, not now: batches that are submitted together go out together.
        if self._timer is None or self._timer.when() > loop.time():
            self._wake_at(loop.time())
        return result

    async def flush(self) -> None:
        """Wait until everything taken on so far has an outcome."""
        unfinished = list(self._results.values())
        if unfinished:
            await asyncio.wait(unfinished)

    async def quiet(self) -> None:
        """Wait until no request is on its way, whatever became of its batches."""
        if self._request_tasks:
            await asyncio.wait(list(self._request_tasks))

    async def close(self) -> None:
        """Give up on whatever has no outcome, and stop."""
        self.abandon(ClientClosed("the producer was closed before the batch had an outcome"))
        self._closed = ClientClosed("the producer is closed")
        if self._timer is not None:
            self._timer.cancel()
        for _, room in self._waiting:
            if not room.done():
                room.set_exception(self._closed)
        self._waiting.clear()
        tasks = [*self._tasks.values(), *self._request_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def identify(self, identity: Identity) -> None:
        """Number all partitions from 0 under this identity. Nothing may be unfinished."""
        self._identity = identity
        for line in self._lines.values():
            line.identify(identity)

    def abandon(self, reason: ClientError) -> None:
        """Give up on whatever has no outcome; identities are lost with it."""
        for line in list(self._lines.values()):
            self._hand_out(line.abandon(_gave_up(reason)))
        self._active.clear()

    def _fail(self, error: Exception) -> None:
        """After an unexpected error nothing here can be relied on: fail all batches, and refuse
        new ones."""
        failure = ClientError(
            f"the producer has failed: {error!r}",
            remedy="create it again; the log has the traceback",
        )
        self.abandon(failure)
        self._closed = self._closed or failure
        for _, room in self._waiting:
            if not room.done():
                room.set_exception(failure)
        self._waiting.clear()

    # Sending

    @property
    def _limit(self) -> int:
        return self._core.config.buffer_memory

    def _line(self, tp: TopicPartition) -> PartitionLine:
        line = self._lines.get(tp)
        if line is None:
            config = self._core.config
            line = self._lines[tp] = PartitionLine(
                tp,
                self._mode,
                max_in_flight=config.max_in_flight,
                backoff=Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
            )
            if self._identity is not None:
                line.identify(self._identity)
        return line

    def _pump(self) -> None:
        if self._closed is not None:
            return
        now = asyncio.get_running_loop().time()
        self._expire(now)
        while self._fill_requests(now):
            pass
        self._wake_for_next(now)

    def _expire(self, now: float) -> None:
        for tp, line in list(self._active.items()):
            deadline = line.next_deadline
            if deadline is not None and deadline <= now:
                self._hand_out(line.expire(now))
            if line.is_empty:
                self._active.pop(tp, None)

    def _fill_requests(self, now: float) -> bool:
        """Send at most one request to each leader; returns whether anything was sent."""
        by_leader: dict[int, list[tuple[PartitionLine, Parcel]]] = {}
        is_current = self._core.is_current({tp.topic for tp in self._active})
        if not is_current:
            self._start("metadata", self._look_for_leaders)
        for tp, line in self._active.items():
            if line.needs_identity and not line.in_flight and self._get_identity is not None:
                self._start("identity", self._fetch_identity)
            parcel = line.sendable(now)
            if parcel is None:
                continue
            if line.is_recovering and not is_current:
                continue  # it may have failed because the leader is another one
            leader = self._core.cluster.leader(tp)
            if leader is None:
                self._start("metadata", self._look_for_leaders)
            else:
                by_leader.setdefault(leader, []).append((line, parcel))
        sent = [self._fill_request(node, ready) for node, ready in by_leader.items()]
        return any(sent)

    def _fill_request(self, node_id: int, ready: list[tuple[PartitionLine, Parcel]]) -> bool:
        config = self._core.config
        if self._requests.get(node_id, 0) >= config.max_in_flight:
            return False
        link = self._core.pool.ready(node_id, PRODUCE)
        if link is None:
            self._start(f"connect {node_id}", lambda: self._connect(node_id))
            return False
        size = 0
        taken: list[tuple[PartitionLine, Parcel]] = []
        for line, parcel in ready:
            if taken and size + parcel.batch.size > config.max_request_size:
                continue
            if line.in_flight and self._carriers[parcel.tp] is not link:
                continue  # on another connection it could overtake those before it
            size += parcel.batch.size
            self._carriers[parcel.tp] = link
            line.sent(parcel)
            taken.append((line, parcel))
        if not taken:
            return False
        answer = submit_produce(
            self._core,
            node_id,
            link,
            {parcel.tp: parcel.batch.view for _, parcel in taken},
            acks=config.acks,
            transactional_id=self._transactional_id,
        )
        self._requests[node_id] = self._requests.get(node_id, 0) + 1
        work = self._finish(node_id, taken, answer)
        task = run_once("produce request", work, on_failure=self._fail)
        self._request_tasks.add(task)
        task.add_done_callback(self._request_tasks.discard)
        return True

    async def _finish(
        self,
        node_id: int,
        taken: list[tuple[PartitionLine, Parcel]],
        answer: Awaitable[Produced],
    ) -> None:
        try:
            produced = await answer
        except ShoalError as error:  # could not even be encoded
            failure = ProduceResult(
                Outcome.FAILED, Code.INVALID_REQUEST, cause=ClientError(str(error))
            )
            produced = {parcel.tp: failure for _, parcel in taken}
        self._requests[node_id] -= 1
        now = asyncio.get_running_loop().time()
        for line, parcel in taken:
            self._hand_out(line.answered(parcel, produced[parcel.tp], now))
        self._pump()

    def _hand_out(self, decided: list[Parcel]) -> None:
        for parcel in decided:
            result = self._results.pop(parcel, None)
            self._bytes -= parcel.batch.size
            assert parcel.result is not None  # noqa: S101 - for the type checker
            if result is not None and not result.done():
                result.set_result(parcel.result)
            if self.on_failure is not None and not parcel.result.is_ok:
                self.on_failure(parcel)
        self._give_room()

    async def _wait_for_room(self, size: int) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, room))
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():
                self._bytes -= size
            self._give_room()
            raise

    def _give_room(self) -> None:
        while self._waiting:
            size, room = self._waiting[0]
            if not room.done() and self._bytes and self._bytes + size > self._limit:
                return
            self._waiting.popleft()
            if not room.done():
                self._bytes += size
                room.set_result(None)

    # Fetching what is missing

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task, unless one of that name is running; then pump again."""
        if name in self._tasks:
            return
        task = run_once("sender", self._work(work), on_failure=self._fail)
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._done(name))

    def _done(self, name: str) -> None:
        del self._tasks[name]
        self._pump()

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One step; what fails is tried again after a while, as long as batches have time."""
        try:
            await work()
            self._backoff.succeeded()
        except ShoalError as error:
            if not error.retriable:
                self.abandon(error if isinstance(error, ClientError) else ClientError(str(error)))
                return
            self._core.distrust_metadata()
            await asyncio.sleep(self._backoff.failed())

    async def _connect(self, node_id: int) -> None:
        await self._core.pool.link(node_id, PRODUCE)

    async def _look_for_leaders(self) -> None:
        cluster = await self._core.metadata({tp.topic for tp in self._active})
        if any(cluster.leader(tp) is None for tp in self._active):
            self._core.distrust_metadata()
            await asyncio.sleep(self._backoff.failed())

    async def _fetch_identity(self) -> None:
        if self._get_identity is None:
            return
        self._identity = await self._get_identity()
        for line in self._lines.values():
            if line.needs_identity and not line.in_flight:
                line.identify(self._identity)

    # Time

    def _wake_for_next(self, now: float) -> None:
        times = [
            line.not_before if line.not_before > now else line.next_deadline
            for line in self._active.values()
        ]
        known = [when for when in times if when is not None]
        if known:
            self._wake_at(min(known))

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._pump()


def _gave_up(reason: ClientError) -> ProduceResult:
    code = getattr(reason, "code", Code.NETWORK_EXCEPTION)
    return ProduceResult(Outcome.FAILED, code, cause=reason)
