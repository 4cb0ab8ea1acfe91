"""What waits for the target has a limit, and a share of it for each broker."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier
from shoal.mirror.pump.queue_room import FULL_S, QueueRoom
from shoal.mirror.pump.work import PartitionWork
from shoal.model.topics import TopicPartition

QUEUE = 3000
LIMITS = MirrorLimits(queue_bytes=QUEUE, partition_bytes=200)
_numbers = count()


class Part:
    """One partition, with as many bytes queued as a test wants."""

    def __init__(
        self,
        room: QueueRoom,
        node: int | None,
        *,
        topic: str = "t",
        is_transactional: bool = False,
    ) -> None:
        delivery = (
            TransactionalDelivery()
            if is_transactional
            else IdempotentDelivery(ProducerIdentity(1, 0))
        )
        tp = TopicPartition(topic, next(_numbers))
        self.work = PartitionWork(PartitionCopier(Intake(tp), delivery, 0, Backoff(1, 1)))
        self.room = room
        self.work.target_node = node

    def hold(self, queued: int, error: str = "", *, is_unanswered: bool = False) -> None:
        self.work.mirror.queued_bytes = queued
        self.work.produce_error, self.work.is_unanswered = error, is_unanswered
        self.room.count(self.work)
        if self.room.must_drop(self.work):
            self.work.mirror.queued_bytes = 0
            self.room.count(self.work)

    @property
    def has_room(self) -> bool:
        return self.room.has_room(self.work) and not self.work.is_stuck


@pytest.fixture(name="room")
def make_room() -> Iterator[QueueRoom]:
    room = QueueRoom(LIMITS, {"limited"})
    yield room
    assert room.total_bytes >= 0


def _make(room: QueueRoom, nodes: int, each: int) -> dict[int, list[Part]]:
    parts = {node: [Part(room, node) for _ in range(each)] for node in range(nodes)}
    for node in parts.values():
        for part in node:
            part.hold(0)
    return parts


def test_a_broker_that_does_not_answer_holds_its_share_and_no_more(room: QueueRoom) -> None:
    parts = _make(room, 3, 20)
    for part in parts[0]:
        if part.has_room:
            part.hold(199, "timed out", is_unanswered=False)
            part.hold(199)
    assert room.total_bytes <= 1500 + 199
    assert not any(part.has_room for part in parts[0])
    assert not room.is_full
    assert all(part.has_room for node in (1, 2) for part in parts[node])
    assert room.take_changed() == {part.work.mirror.partition for part in parts[0]}
    # Its requests time out: nothing more is fetched for it either.
    for part in parts[0]:
        part.hold(part.work.mirror.queued_bytes, "timed out", is_unanswered=True)
    assert not any(part.has_room for part in parts[0])
    for part in parts[0]:
        part.hold(0)
    assert all(part.has_room for part in parts[0])


def test_several_slow_brokers_leave_room_after_a_moment(room: QueueRoom) -> None:
    parts = _make(room, 4, 20)
    for number in range(20):
        for node in (0, 1, 2):
            if not room.is_full:
                parts[node][number].hold(150)
    full = [room.is_full]
    for now in (10.0, 10.0 + FULL_S):
        room.compare_shares(now)
        full.append(room.is_full)
    assert full == [True, True, False]
    assert [parts[node][0].has_room for node in range(4)] == [False, False, False, True]


def test_brokers_that_are_busy_alike_are_left_alone(room: QueueRoom) -> None:
    parts = _make(room, 3, 20)
    for number in range(20):
        for node in range(3):
            if not room.is_full:
                parts[node][number].hold(150)
    for now in (10.0, 10.0 + FULL_S, 20.0):
        room.compare_shares(now)
    assert room.is_full
    assert room.take_changed() == set()
    assert all(part.has_room for node in parts.values() for part in node)


def test_one_broker_may_use_all(room: QueueRoom) -> None:
    parts = _make(room, 1, 20)[0]
    for part in parts:
        part.hold(199)
        room.compare_shares(10.0)
        assert part.has_room
    assert room.is_full
    room.compare_shares(99.0)
    assert all(part.has_room for part in parts)


def test_limited_topics_and_transactions_have_shares_of_their_own(room: QueueRoom) -> None:
    others = _make(room, 1, 1)[0]
    limited = [Part(room, 0, topic="limited") for _ in range(40)]
    transactional = [Part(room, 0, is_transactional=True) for _ in range(40)]
    for part in (*limited, *transactional):
        part.hold(0)
        if part.has_room:
            part.hold(150)
    assert room.total_bytes <= QUEUE / 8 + QUEUE / 2 + 300
    assert not room.is_full
    assert others[0].has_room
    assert not limited[0].has_room
    assert not transactional[0].has_room


def test_what_is_in_a_transaction_makes_room_for_more(room: QueueRoom) -> None:
    part = Part(room, 0, is_transactional=True)
    part.hold(250)
    assert not part.has_room
    delivery = part.work.mirror.delivery
    assert isinstance(delivery, TransactionalDelivery)
    delivery._taken_bytes = 200
    assert part.has_room


def test_stuck_partitions_drop_what_exceeds_the_limit(room: QueueRoom) -> None:
    """As if the target refused each partition of a topic for the time being."""
    parts = _make(room, 2, 200)
    for node in parts.values():
        for part in node:
            part.hold(199)
            part.hold(199, "NOT_ENOUGH_REPLICAS")
    assert room.total_bytes <= QUEUE + 199
    assert not room.is_full
    dropped = [part for part in parts[0] if not part.work.mirror.queued_bytes]
    assert dropped
    assert all(part.has_room for part in dropped)  # to be tried again, at its time


def test_what_a_parked_partition_had_sent_takes_no_room_of_others(room: QueueRoom) -> None:
    parked, *others = _make(room, 2, 5)[0]
    parked.hold(2300, "timed out", is_unanswered=True)
    assert not others[0].has_room
    parked.work.mirror.park("why", "what to do")
    parked.hold(2300, "timed out", is_unanswered=True)
    assert others[0].has_room


def test_many_limited_topics_share_half_of_the_queue() -> None:
    topics = [f"limited-{number}" for number in range(20)]
    room = QueueRoom(LIMITS, set(topics))
    for topic in topics:
        for _ in range(10):
            part = Part(room, 0, topic=topic)
            part.hold(0)
            if part.has_room:
                part.hold(50)
    assert room.total_bytes <= QUEUE / 2 + len(topics) * 50


_STEPS = st.tuples(
    st.integers(0, 29),
    st.integers(0, 300),
    st.sampled_from(["", "refused", "unanswered"]),
    st.none() | st.integers(0, 3),
)


@given(st.lists(_STEPS, max_size=150))
def test_all_that_waits_is_bounded_whatever_happens(
    steps: list[tuple[int, int, str, int | None]],
) -> None:
    room = QueueRoom(LIMITS, {"limited"})
    kinds = [("t", False), ("limited", False), ("t", True)]
    parts = [
        Part(room, number % 4, topic=kinds[number % 3][0], is_transactional=kinds[number % 3][1])
        for number in range(30)
    ]
    for now, (number, size, error, node) in enumerate(steps):
        part, before = parts[number], parts[number].work.mirror.queued_bytes
        part.work.target_node = node
        part.hold(before)
        may_grow = part.has_room and not room.is_full
        part.hold(size if may_grow else min(size, before), error, is_unanswered=error[0:1] == "u")
        room.compare_shares(float(now))
        assert room.total_bytes <= 4.5 * QUEUE + 600
        assert room.total_bytes == sum(each.work.mirror.queued_bytes for each in parts)
    for part in parts:
        part.hold(0)
    assert room.total_bytes == 0
    room.compare_shares(1e9)
    assert not room.is_full
    assert all(part.has_room for part in parts if part.work.target_node is not None)
    for part in parts:
        room.remove(part.work.mirror.partition)
    assert room.total_bytes == room._queued_bytes == 0
