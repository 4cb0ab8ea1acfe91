"""Producers that try again, a consumer that reads anywhere, and someone who administers.

Rules of this file:
- An idempotent producer keeps the order of its batches and sends the same batch until it is
  acknowledged. Until its first acknowledgement it has one batch on its way: a leader that knows
  nothing of a producer takes any first sequence.
- Who leads is asked of any broker, which may know less than others.
"""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import NO_LEADER
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.log import header_of
from shoal.lite.simulation.messages import (
    ControllerCall,
    ControllerReply,
    ProduceMessage,
    ProduceReply,
)
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.process import Clock, Process
from shoal.lite.storage.header import BatchHeader

if TYPE_CHECKING:
    from shoal.lite.simulation.world import World

_ANSWER_MS = 700
_BACKOFF_MS = 60
_IN_FLIGHT = 3
_MOST_QUEUED = 12
_NEXT_ID = 1000
_READ_BATCHES = 5


@dataclass(slots=True, eq=False)
class _Sending:
    """A batch that is not acknowledged yet."""

    header: BatchHeader
    # How many were sent before it.
    place: int
    # Of its last try, which counts until a time; then it is tried again.
    number: int | None = None
    until_ms: int = 0
    retry_ms: int = 0


class SimulatedProducer(Process):
    """Writes to one partition."""

    def __init__(
        self,
        world: "World",
        node_id: int,
        clock: Clock,
        *,
        key: Key,
        acks: int,
        is_idempotent: bool,
    ) -> None:
        super().__init__(world, node_id, clock)
        self.key = key
        self.acks = acks
        self._producer_id = node_id if is_idempotent else -1
        self._random = Random(world.setup.seed * 31 + node_id)
        self._sequence = 0
        self._places = 0
        self._sending: deque[_Sending] = deque()
        self._has_acknowledgement = False

    @property
    def is_done(self) -> bool:
        return not self._sending

    def send_records(self, count: int) -> None:
        """Write so many records, sooner or later."""
        if len(self._sending) >= _MOST_QUEUED:
            return
        is_idempotent = self._producer_id >= 0
        header = header_of(self._producer_id, self._sequence if is_idempotent else -1, count)
        self._sequence += count
        self._sending.append(_Sending(header, self._places))
        self._places += 1
        self._try()

    def wake(self) -> None:
        self._try()

    def next_deadline_ms(self) -> int | None:
        return min(
            (s.retry_ms if s.number is None else s.until_ms for s in self._window()),
            default=None,
        )

    def _window(self) -> list[_Sending]:
        """The batches that may be on their way: the first, and a few behind it."""
        if not self._sending:
            return []
        is_careful = self._producer_id >= 0 and not self._has_acknowledgement
        end = self._sending[0].place + (1 if is_careful else _IN_FLIGHT)
        return [sending for sending in self._sending if sending.place < end]

    def _try(self) -> None:
        now_ms = self.now_ms
        for sending in self._window():
            if sending.number is not None and now_ms >= sending.until_ms:
                sending.number = None
            if sending.number is None and now_ms >= sending.retry_ms:
                self._try_one(sending, now_ms)

    def _try_one(self, sending: _Sending, now_ms: int) -> None:
        leader = self.world.find_leader(self.key, self._random)
        if leader == NO_LEADER:
            sending.retry_ms = now_ms + _BACKOFF_MS
            return
        call = ProduceMessage(self.next_call(), self.key, sending.header, self.acks)
        sending.number = call.number
        sending.until_ms = now_ms + _ANSWER_MS
        self.send(leader, call)
        if self.acks == 0:
            self._sending.remove(sending)

    def receive(self, sender: int, message: Any) -> None:
        reply: ProduceReply = message
        for sending in self._sending:
            if sending.number == reply.number:
                break
        else:
            return
        if reply.code == Code.NONE:
            self._sending.remove(sending)
            self._has_acknowledgement = True
            self.world.judge.on_producer_acknowledged(self, reply.batch)
        else:
            sending.number = None
            sending.retry_ms = self.now_ms + _BACKOFF_MS
            is_unknown = reply.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
            if is_unknown and self.world.judge.may_have_forgotten(self.key):
                self._begin_again()
        self._try()

    def _begin_again(self) -> None:
        """What came before is lost, by an unclean election: continue under another id."""
        self._producer_id += _NEXT_ID
        self._has_acknowledgement = False
        self._sequence = 0
        for sending in self._sending:
            count = sending.header.record_count
            sending.header = header_of(self._producer_id, self._sequence, count)
            sending.number = None
            self._sequence += count


class SimulatedConsumer:
    """Reads each partition from its beginning, from any replica, and checks what it gets."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._positions: dict[Key, tuple[int, int]] = {}

    def read(self, hosted: SimulatedPartition) -> None:
        """Read on from where we are, up to the high watermark of a replica."""
        judge = self._world.judge
        if not judge.is_aligned(hosted):
            # It may still give what was given up by an unclean election.
            return
        offset, epoch = self._positions.get(hosted.key, (0, -1))
        role = hosted.replica.role
        if hosted.replica.leader is None:
            # A follower that has less than we have read would send us back.
            epoch = -1
        try:
            diverging = role.divergence(offset, epoch)
        except ApiError:
            if offset < hosted.log.start_offset:
                self._positions[hosted.key] = hosted.log.start_offset, -1
            else:
                judge.on_consumer_out_of_range(hosted, offset)
            return
        if diverging is not None:
            judge.on_consumer_diverged(hosted, offset, diverging)
            return
        for batch in hosted.log.read(offset, _READ_BATCHES, role.high_watermark):
            judge.on_consumed(hosted, batch)
            self._positions[hosted.key] = batch.end_offset, batch.epoch

    def forget(self, key: Key) -> None:
        """Begin again: an unclean election took what was read."""
        self._positions.pop(key, None)


class Administrator(Process):
    """Asks the controller for things. What it asks for once may be lost; some things it repeats."""

    def __init__(self, world: "World", node_id: int, clock: Clock) -> None:
        super().__init__(world, node_id, clock)

    def ask(self, request: ControllerRequest[Any]) -> None:
        active = self.world.active_controller()
        if active is not None:
            self.world.trace(self.id, f"asks {active.id}: {request}")
            self.send(active.id, ControllerCall(self.next_call(), request))

    def receive(self, sender: int, message: Any) -> None:
        reply: ControllerReply = message
        if reply.code == Code.NONE:
            self.world.counters["wishes granted"] += 1

    def wake(self) -> None:
        pass

    def next_deadline_ms(self) -> int | None:
        return None
