"""The requests of a runner to the target, and what their answers change.

Rules:
- A request needs no task if the connection to the broker is open: its answer is a callback.
- Acknowledgements are nearly all that happens. One that changes nothing but what is queued is
  settled without a look at everything else that its partition may need (`_settle`). After any other
  answer the partition is touched, and so looked at in full.
- All answers that have arrived are processed before anything else is sent (`pump_soon`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.client.codes import INVALIDATES_METADATA
from shoal.client.errors import error_for
from shoal.client.produce.compare_and_append import AppendResult
from shoal.client.produce.raw_produce import ProduceCall, Produced
from shoal.client.results import ProduceResult
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.pump.agenda import Agenda
from shoal.mirror.pump.cluster_side import ClusterSide
from shoal.mirror.pump.outbox import Outbox, Singles, Units
from shoal.mirror.pump.queue_room import QueueRoom
from shoal.mirror.pump.statuses import Statuses
from shoal.mirror.pump.work import PartitionWork
from shoal.model.topics import TopicPartition


def _ignore_move(_: PartitionMirror) -> None:
    pass


@dataclass(slots=True)
class TargetWrites:
    """Sends to the brokers of the target for one runner."""

    side: ClusterSide
    works: Mapping[TopicPartition, PartitionWork]
    agenda: Agenda
    outbox: Outbox
    room: QueueRoom
    statuses: Statuses
    ended: asyncio.Event  # of the run: answers do not matter any longer
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    pump_soon: Callable[[], None]
    fail: Callable[[BaseException], None]
    refresh: Callable[[], None]  # the metadata of the target
    # Called with partitions whose resume point may have changed.
    on_moved: Callable[[PartitionMirror], None] = _ignore_move
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def send(self, node_id: int, batches: Singles) -> None:
        """Send one batch of each of these partitions."""
        views = {mirror.target: out.batch.view for mirror, out in batches}
        call = self.side.client.begin_produce_to(node_id, views, acks=-1)
        if call is None:
            self.spawn(self._produce(node_id, batches))
            return
        call.answer.add_done_callback(partial(self._on_answer, node_id, batches, call))

    async def append(self, node_id: int, units: Units) -> None:
        """Send units by compare-and-append."""
        requests = {each.mirror.target: each.append_request(unit) for each, unit in units}
        try:
            results = await self.side.client.compare_and_append(requests)
        finally:
            self.side.busy[node_id] -= 1
        now = self._loop.time()
        for delivery, unit in units:
            result = results[delivery.mirror.target]
            self._record_result(delivery.mirror, result)
            delivery.on_append_result(unit, result, now=now)

    def _on_answer(
        self,
        node_id: int,
        batches: Singles,
        call: ProduceCall,
        answer: asyncio.Future[memoryview],
    ) -> None:
        self.side.busy[node_id] -= 1
        if answer.cancelled() or self.ended.is_set():
            return
        try:
            self._process_results(batches, call.results())
            self.pump_soon()
        except Exception as error:  # noqa: BLE001 - it ends the run, as that of a task does
            self.fail(error)

    async def _produce(self, node_id: int, batches: Singles) -> None:
        """As `send`, where a connection must be opened first."""
        try:
            results = await self.side.client.produce_to(
                node_id, {mirror.target: out.batch.view for mirror, out in batches}, acks=-1
            )
        finally:
            self.side.busy[node_id] -= 1
        self._process_results(batches, results)

    def _process_results(self, batches: Singles, results: Produced) -> None:
        now, works = self._loop.time(), self.works
        for mirror, outgoing in batches:
            result = results[mirror.target]
            work = works.get(mirror.partition)
            mirror.on_produce_result(outgoing, result, now=now)
            if work is not None and not result.error_code and work.is_calm:
                self._settle(work)
            else:
                self._record_result(mirror, result)

    def _settle(self, work: PartitionWork) -> None:
        """Note what an acknowledgement changed, if that is only what is queued."""
        mirror, tp = work.mirror, work.mirror.partition
        self.room.count_less(work)
        if mirror.queue.batches:
            self.outbox.put(work, work.target_node)
        if work.awaits_room and self.room.has_room(work):
            self.agenda.touch(tp)
        self.statuses.mark(tp)
        self.on_moved(mirror)

    def _record_result(self, mirror: PartitionMirror, result: ProduceResult | AppendResult) -> None:
        error = ""
        if not result.is_ok:
            error = str(result.cause or error_for(result.error_code))
            if result.error_code in INVALIDATES_METADATA:
                self.refresh()
        self.agenda.touch(mirror.partition)
        work = self.works.get(mirror.partition)
        if work is not None:
            work.produce_error, work.is_probe = error, False
            work.is_unanswered = result.cause is not None
