"""The follower's end of a fetch session: what each request contains."""

from typing import Any

import pytest

from shoal.lite.base.codes import Code
from shoal.lite.partitions.sessions.fetch_session import FetcherIdentity, ReplicaFetchSession
from shoal.lite.replication.fetch_sessions import error_answer
from shoal.lite.replication.messages import ReplicationSettings
from shoal.wire.errors import Malformed
from shoal.wire.fetch import NO_SESSION_ID, FetchPartition, FetchRequest, PartitionAnswer
from support.replication.world import TOPIC_ID, Entry, ScriptedPartition, World

PAUSE_MS = 40
WAIT_MS = 500
SESSION_ID = 7


class Stage:
    """Broker 2 follows 1 with one partition."""

    def __init__(self) -> None:
        self.world = World(3, ReplicationSettings(replica_fetch_backoff_ms=PAUSE_MS))
        for broker_id in self.world.brokers:
            self.world.learn(broker_id)
        partition = self.world.brokers[2].partition
        assert partition
        self.partition: ScriptedPartition = partition
        self.has_left = False
        identity = FetcherIdentity(2, broker_epoch=2, wait_ms=WAIT_MS)
        self.session = ReplicaFetchSession(
            1, identity, self._followers_of, lambda _: self.end_offset
        )

    def _followers_of(self, leader_id: int) -> list[ScriptedPartition]:
        assert leader_id == 1
        return [] if self.has_left else [self.partition]

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def request(self) -> FetchRequest:
        assert self.session.choose_partitions(self.world.now_ms)
        return self.session.next_request(self.world.now_ms)

    def answer(self, *answers: PartitionAnswer[Any]) -> None:
        self.session.on_answer(self.world.now_ms, SESSION_ID, Code.NONE, answers)

    def begin(self) -> FetchPartition:
        """Begin a session; return the partition of its first request."""
        request = self.request()
        assert (request.session_id, request.session_epoch) == (NO_SESSION_ID, 0)
        [requested] = request.partitions
        self.answer(self.records())
        return requested

    def records(self, *values: str) -> PartitionAnswer[Any]:
        entries = [Entry(0, value) for value in values]
        return PartitionAnswer(
            "p", TOPIC_ID, 0, high_watermark=0, log_start_offset=0, records=entries
        )

    def move_leader_to(self, broker_id: int) -> None:
        self.world.controller.move_leader(broker_id)
        self.world.learn(2)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_request_contains_only_what_changed(stage: Stage) -> None:
    assert stage.begin().offset == 0
    request = stage.request()
    assert (request.session_id, request.session_epoch, request.partitions) == (SESSION_ID, 1, [])
    stage.answer(stage.records("a", "b"))
    request = stage.request()
    assert request.session_epoch == 2
    assert [(each.offset, each.last_fetched_epoch) for each in request.partitions] == [(2, 0)]
    stage.answer()
    assert stage.request().partitions == []


def test_a_partition_with_an_error_returns_after_its_pause(stage: Stage) -> None:
    requested = stage.begin()
    stage.request()
    stage.answer(error_answer(requested, Code.UNKNOWN_LEADER_EPOCH))
    request = stage.request()
    # The leader has removed it already, and must not hold the fetch for longer than the pause.
    assert (request.partitions, request.forgotten) == ([], [])
    assert request.max_wait_ms == PAUSE_MS
    stage.world.pass_time(PAUSE_MS)
    stage.answer()
    request = stage.request()
    assert [each.partition for each in request.partitions] == [0]
    assert request.max_wait_ms == WAIT_MS


def test_a_fenced_partition_is_not_retried(stage: Stage) -> None:
    requested = stage.begin()
    stage.request()
    stage.answer(error_answer(requested, Code.FENCED_LEADER_EPOCH))
    request = stage.request()
    assert (request.partitions, request.max_wait_ms) == ([], WAIT_MS)


def test_a_partition_that_left_is_forgotten(stage: Stage) -> None:
    stage.begin()
    stage.has_left = True
    assert stage.request().forgotten == []
    stage.answer()
    stage.session.has_changed = True
    request = stage.request()
    assert ([each.partition for each in request.forgotten], request.partitions) == ([0], [])
    stage.answer()
    assert stage.request().forgotten == []


@pytest.mark.parametrize(
    "code", [Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH]
)
def test_a_session_that_ended_begins_again(stage: Stage, code: Code) -> None:
    stage.begin()
    stage.request()
    stage.session.on_answer(stage.world.now_ms, NO_SESSION_ID, code, [])
    request = stage.request()
    assert (request.session_id, request.session_epoch) == (NO_SESSION_ID, 0)
    assert len(request.partitions) == 1


def test_an_answer_without_a_session_is_followed_by_a_full_fetch(stage: Stage) -> None:
    stage.request()
    stage.session.on_answer(stage.world.now_ms, NO_SESSION_ID, Code.NONE, [stage.records("a")])
    request = stage.request()
    assert request.session_epoch == 0
    assert [each.offset for each in request.partitions] == [1]


def test_another_error_of_the_request_is_not_an_answer(stage: Stage) -> None:
    stage.request()
    with pytest.raises(Malformed):
        stage.session.on_answer(stage.world.now_ms, 0, Code.INVALID_REQUEST, [])


def test_pauses_without_an_answer_double(stage: Stage) -> None:
    stage.begin()
    pauses_s = [stage.session.on_no_answer(stage.world.now_ms) for _ in range(8)]
    assert pauses_s == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    # The partition has a pause of its own.
    assert not stage.session.choose_partitions(stage.world.now_ms)
    assert stage.session.idle_ms(stage.world.now_ms) <= 1000
    stage.world.pass_time(1000)
    stage.begin()
    assert stage.session.on_no_answer(stage.world.now_ms) == pauses_s[0]


def test_an_unexpected_error_affects_only_its_partition(stage: Stage) -> None:
    stage.begin()
    stage.request()
    broken: Any = [object()]
    stage.answer(stage.records()._replace(records=broken))
    request = stage.request()
    assert [each.partition for each in request.forgotten] == [0]
    assert request.max_wait_ms == PAUSE_MS


def test_a_former_leader_is_not_asked_for_the_next_leader_epoch(stage: Stage) -> None:
    """Its errors would pause the follower, which fetches from the new leader."""
    requested = stage.begin()
    stage.request()
    stage.move_leader_to(3)
    follower = stage.partition.replica.follower
    assert follower
    assert follower.leader == 3
    stage.answer(error_answer(requested, Code.NOT_LEADER_OR_FOLLOWER))
    request = stage.request()
    assert (request.partitions, request.max_wait_ms) == ([], WAIT_MS)
    assert follower.next_fetch(stage.world.now_ms) is not None


def test_a_partition_that_follows_another_leader_is_forgotten(stage: Stage) -> None:
    stage.begin()
    stage.request()
    stage.move_leader_to(3)
    stage.answer(stage.records("a"))
    request = stage.request()
    assert (request.partitions, [each.partition for each in request.forgotten]) == ([], [0])
