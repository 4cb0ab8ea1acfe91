"""Sends the batches of many partitions: the asyncio shell around `sequencing`.

Rules of this file:
- `PartitionQueue` decides what may be sent and which batches are decided; this file finds leaders,
  fills requests, sets timers and sets results. All partitions of a leader share its requests.
- `_pump` never waits. If it lacks a leader, a connection or an identity, a task fetches it and
  calls `_pump` again; so nothing polls.
- Results are futures that never fail: an outcome is always ok, failed or unknown.
- At most `buffer.memory` bytes are without an outcome; above that `enqueue` waits, in order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientClosed, ClientError
from shoal.client.produce.raw_produce import Produced, submit_produce
from shoal.client.produce.sequencing import Mode, PartitionQueue, PendingBatch, ProducerIdentity
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
        get_identity: Callable[[], Awaitable[ProducerIdentity]] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self._core = core
        self._mode = mode
        self._get_identity = get_identity
        self._transactional_id = transactional_id
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        # The queues that are not empty.
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._results: dict[PendingBatch, Result] = {}
        self._identity: ProducerIdentity | None = None
        self._requests: dict[int, int] = {}
        # The connection of a partition's batches in flight.
        self._carriers: dict[TopicPartition, Link] = {}
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(core.config.retry_backoff_ms, core.config.retry_backoff_max_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._closed: ClientError | None = None
        # Called with every batch whose outcome is not ok.
        self.on_failure: Callable[[PendingBatch], None] | None = None

    @property
    def unfinished(self) -> int:
        """Batches without an outcome."""
        return len(self._results)

    async def enqueue(
        self,
        tp: TopicPartition,
        batch: Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Wait for buffer space, then queue a batch; returns the future of its outcome."""
        size = batch.size
        if self._bytes and (self._waiting or self._bytes + size > self._limit):
            await self._wait_for_room(size)
            self._bytes -= size  # reserved until this task ran; `submit` adds it again
        return self.submit(tp, batch, timeout_s=timeout_s, retries=retries)

    def submit(
        self,
        tp: TopicPartition,
        batch: Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Queue a batch now, ignoring `buffer.memory`; it expires after `delivery.timeout.ms`."""
        loop = asyncio.get_running_loop()
        result: Result = loop.create_future()
        if self._closed is not None:
            result.set_result(_failure_result(self._closed))
            return result
        if timeout_s is None:
            timeout_s = self._core.config.delivery_timeout_ms / 1000
        pending = PendingBatch(tp, batch, deadline=loop.time() + timeout_s, retries=retries)
        self._results[pending] = result
        self._bytes += batch.size
        queue = self._queue_of(tp)
        queue.add(pending)
        self._active[tp] = queue
        # In the next loop iteration: batches that are submitted together share requests.
        if self._timer is None or self._timer.when() > loop.time():
            self._wake_at(loop.time())
        return result

    async def flush(self) -> None:
        """Wait until every queued batch has an outcome."""
        unfinished = list(self._results.values())
        if unfinished:
            await asyncio.wait(unfinished)

    async def wait_for_requests(self) -> None:
        """Wait until no request is in flight, even if its batches are already decided."""
        if self._request_tasks:
            await asyncio.wait(list(self._request_tasks))

    async def close(self) -> None:
        """Give up on batches without an outcome, and stop."""
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

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Number all partitions from 0 under this identity. All batches must have outcomes."""
        self._identity = identity
        for queue in self._queues.values():
            queue.set_identity(identity)

    def abandon(self, reason: ClientError) -> None:
        """Give up on batches without an outcome; this ends the identities too."""
        for queue in list(self._queues.values()):
            self._set_results(queue.abandon(_failure_result(reason)))
        self._active.clear()

    def _fail(self, error: Exception) -> None:
        """Fail all batches and refuse new ones: after an unexpected error the state is unsafe."""
        failure = ClientError(
            f"internal error of the producer: {error!r}",
            remedy="create a new producer; the log has the traceback",
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

    def _queue_of(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            config = self._core.config
            queue = self._queues[tp] = PartitionQueue(
                tp,
                self._mode,
                max_in_flight=config.max_in_flight,
                backoff=Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
            )
            if self._identity is not None:
                queue.set_identity(self._identity)
        return queue

    def _pump(self) -> None:
        if self._closed is not None:
            return
        now = asyncio.get_running_loop().time()
        self._expire(now)
        while self._fill_requests(now):
            pass
        self._wake_for_next(now)

    def _expire(self, now: float) -> None:
        for tp, queue in list(self._active.items()):
            deadline = queue.next_deadline
            if deadline is not None and deadline <= now:
                self._set_results(queue.expire(now))
            if queue.is_empty:
                self._active.pop(tp, None)

    def _fill_requests(self, now: float) -> bool:
        """Send at most one request to each leader; returns whether anything was sent."""
        by_leader: dict[int, list[tuple[PartitionQueue, PendingBatch]]] = {}
        is_current = self._core.is_current({tp.topic for tp in self._active})
        if not is_current:
            self._start("metadata", self._find_leaders)
        for tp, queue in self._active.items():
            if queue.needs_broker_state and self._get_identity is not None:
                self._start("identity", self._fetch_identity)
            pending = queue.next_to_send(now)
            if pending is None:
                continue
            if queue.is_recovering and not is_current:
                continue  # it may have failed because the leader has changed
            leader = self._core.cluster.leader(tp)
            if leader is None:
                self._start("metadata", self._find_leaders)
            else:
                by_leader.setdefault(leader, []).append((queue, pending))
        sent = [self._fill_request(node, ready) for node, ready in by_leader.items()]
        return any(sent)

    def _fill_request(self, node_id: int, ready: list[tuple[PartitionQueue, PendingBatch]]) -> bool:
        config = self._core.config
        if self._requests.get(node_id, 0) >= config.max_in_flight:
            return False
        link = self._core.pool.ready(node_id, PRODUCE)
        if link is None:
            self._start(f"connect {node_id}", lambda: self._connect(node_id))
            return False
        size = 0
        taken: list[tuple[PartitionQueue, PendingBatch]] = []
        for queue, pending in ready:
            if taken and size + pending.batch.size > config.max_request_size:
                continue
            if queue.in_flight and self._carriers[pending.tp] is not link:
                continue  # on another connection it could overtake earlier batches
            size += pending.batch.size
            self._carriers[pending.tp] = link
            queue.mark_sent(pending)
            taken.append((queue, pending))
        if not taken:
            return False
        answer = submit_produce(
            self._core,
            node_id,
            link,
            {pending.tp: pending.batch.view for _, pending in taken},
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
        taken: list[tuple[PartitionQueue, PendingBatch]],
        answer: Awaitable[Produced],
    ) -> None:
        try:
            produced = await answer
        except ShoalError as error:  # the request could not be encoded
            failure = ProduceResult(
                Outcome.FAILED, Code.INVALID_REQUEST, cause=ClientError(str(error))
            )
            produced = {pending.tp: failure for _, pending in taken}
        self._requests[node_id] -= 1
        now = asyncio.get_running_loop().time()
        for queue, pending in taken:
            self._set_results(queue.on_result(pending, produced[pending.tp], now))
        self._pump()

    def _set_results(self, decided: list[PendingBatch]) -> None:
        for pending in decided:
            result = self._results.pop(pending, None)
            self._bytes -= pending.batch.size
            assert pending.result is not None  # noqa: S101 - for the type checker
            if result is not None and not result.done():
                result.set_result(pending.result)
            if self.on_failure is not None and not pending.result.is_ok:
                self.on_failure(pending)
        self._grant_room()

    async def _wait_for_room(self, size: int) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, room))
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():
                self._bytes -= size
            self._grant_room()
            raise

    def _grant_room(self) -> None:
        while self._waiting:
            size, room = self._waiting[0]
            if not room.done() and self._bytes and self._bytes + size > self._limit:
                return
            self._waiting.popleft()
            if not room.done():
                self._bytes += size
                room.set_result(None)

    # Leaders, connections and identities

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task unless one of that name is running; call `_pump` when it ends."""
        if name in self._tasks:
            return
        task = run_once("sender", self._run_with_backoff(work), on_failure=self._fail)
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._on_task_done(name))

    def _on_task_done(self, name: str) -> None:
        del self._tasks[name]
        self._pump()

    async def _run_with_backoff(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one step; after a retriable error wait, and let `_pump` start it again."""
        try:
            await work()
            self._backoff.reset()
        except ShoalError as error:
            if not error.retriable:
                self.abandon(error if isinstance(error, ClientError) else ClientError(str(error)))
                return
            self._core.invalidate_metadata()
            await asyncio.sleep(self._backoff.next_wait_s())

    async def _connect(self, node_id: int) -> None:
        await self._core.pool.link(node_id, PRODUCE)

    async def _find_leaders(self) -> None:
        cluster = await self._core.metadata({tp.topic for tp in self._active})
        if any(cluster.leader(tp) is None for tp in self._active):
            self._core.invalidate_metadata()
            await asyncio.sleep(self._backoff.next_wait_s())

    async def _fetch_identity(self) -> None:
        if self._get_identity is None:
            return
        self._identity = await self._get_identity()
        for queue in self._queues.values():
            if queue.needs_broker_state:
                queue.set_identity(self._identity)

    # Time

    def _wake_for_next(self, now: float) -> None:
        times = [
            queue.not_before if queue.not_before > now else queue.next_deadline
            for queue in self._active.values()
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


def _failure_result(reason: ClientError) -> ProduceResult:
    code = getattr(reason, "code", Code.NETWORK_EXCEPTION)
    return ProduceResult(Outcome.FAILED, code, cause=reason)
