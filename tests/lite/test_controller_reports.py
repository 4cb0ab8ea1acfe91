"""Proposals of leaders go to the controller together, and each gets its own answer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.partitions.reports import MOST_CHANGES, ControllerReports
from shoal.lite.replication.messages import AlterIsr, IsrAnswer

TOPICS = [UUID(int=1), UUID(int=2)]
Sent = tuple[requests.AlterPartitions, Callable[[Reply], object]]


class ProposingPartition:
    """A partition that remembers its answers."""

    def __init__(self, topic_id: UUID, index: int) -> None:
        self.record = SimpleNamespace(key=(topic_id, index))
        self.answers: list[IsrAnswer] = []
        self.is_broken = False

    def on_isr_answer(self, _leader: Any, _proposal: AlterIsr, answer: IsrAnswer) -> None:
        if self.is_broken:
            raise RuntimeError("broken")
        self.answers.append(answer)


class World:
    """A broker without an event loop."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.due: list[Callable[[], None]] = []
        broker: Any = SimpleNamespace(broker_id=1, broker_epoch=7)
        submit: Any = lambda request, on_reply: self.sent.append((request, on_reply))  # noqa: E731
        self.reports = ControllerReports(broker, submit, self.due.append)

    def propose(self, count: int) -> list[ProposingPartition]:
        partitions = [ProposingPartition(TOPICS[index % 2], index) for index in range(count)]
        for partition in partitions:
            of_leader: Any = partition
            self.reports.propose(of_leader, of_leader, AlterIsr(1, 5, 3, ((1, 7), (2, 8))))
        return partitions

    def make_due_calls(self) -> None:
        while self.due:
            self.due.pop(0)()


def accepting(request: requests.AlterPartitions) -> Reply:
    """The controller's reply, in another order than the request has."""
    answers = [
        requests.InSyncAnswer(
            change.topic_id,
            change.partition,
            Code.NONE,
            PartitionRecord(
                change.topic_id,
                change.partition,
                (1, 2),
                (1, 2),
                1,
                leader_epoch=5,
                partition_epoch=100 + change.partition,
            ),
        )
        for change in reversed(request.changes)
    ]
    return Reply(answers, None, 0)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [1]),
        (7, [7]),
        (MOST_CHANGES, [MOST_CHANGES]),
        (2 * MOST_CHANGES + 3, [MOST_CHANGES, MOST_CHANGES, 3]),
    ],
)
def test_what_is_proposed_in_one_moment_goes_together(count: int, sizes: list[int]) -> None:
    world = World()
    partitions = world.propose(count)
    assert world.sent == []
    world.make_due_calls()
    assert [len(request.changes) for request, _ in world.sent] == sizes
    for request, on_reply in world.sent:
        on_reply(accepting(request))
    for partition in partitions:
        [answer] = partition.answers
        assert (answer.code, answer.partition_epoch) == (Code.NONE, 100 + partition.record.key[1])


def test_a_refusal_of_the_request_answers_everyone() -> None:
    world = World()
    partitions = world.propose(3)
    world.make_due_calls()
    [(_, on_reply)] = world.sent
    on_reply(Reply(None, ApiError(Code.NOT_CONTROLLER, "moved"), 0))
    assert [[answer.code for answer in each.answers] for each in partitions] == [
        [Code.NOT_CONTROLLER]
    ] * 3


def test_a_partition_that_is_left_out_of_the_reply_is_told() -> None:
    world = World()
    [partition] = world.propose(1)
    world.make_due_calls()
    [(_, on_reply)] = world.sent
    on_reply(Reply([], None, 0))
    assert [answer.code for answer in partition.answers] == [Code.UNKNOWN_SERVER_ERROR]


def test_partitions_that_fail_hold_no_other_back() -> None:
    world = World()
    first, *broken, last = world.propose(4)
    for partition in broken:
        partition.is_broken = True
    world.make_due_calls()
    [(request, on_reply)] = world.sent
    with pytest.raises(RuntimeError):
        on_reply(accepting(request))
    assert [len(each.answers) for each in (first, *broken, last)] == [1, 0, 0, 1]
    # What production does when a report fails with a defect.
    broken[1].is_broken = False
    with pytest.raises(RuntimeError):
        on_reply(Reply(None, ApiError(Code.UNKNOWN_SERVER_ERROR, "internal error"), 0))
    assert [len(each.answers) for each in (first, *broken, last)] == [1, 0, 1, 1]


def test_later_proposals_are_gathered_again() -> None:
    world = World()
    world.propose(2)
    world.make_due_calls()
    world.propose(1)
    world.make_due_calls()
    assert [len(request.changes) for request, _ in world.sent] == [2, 1]
