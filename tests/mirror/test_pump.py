"""The runner's agenda and its readers: what must be looked at, and how long fetches wait."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.mirror.pump.agenda import Agenda
from shoal.mirror.pump.reader import UNTIL_ROOM, SourceReader
from shoal.model.topics import TopicPartition
from shoal.wire.fetch import FetchPartition

LONGEST_MS = 500


def _tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def _at(number: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("t", None, number, offset, 1 << 20, -1)


def test_only_what_is_touched_or_due_is_taken() -> None:
    agenda = Agenda()
    agenda.set_time(_tp(0), 5.0)
    agenda.set_time(_tp(1), 7.0)
    agenda.touch(_tp(2))
    agenda.touch(_tp(2))
    assert agenda.take(4.0) == [_tp(2)]
    assert agenda.next_at == 5.0
    assert agenda.take(4.0) == []
    assert agenda.take(7.0) == [_tp(0), _tp(1)]
    assert agenda.next_at is None


def test_another_time_replaces_the_first() -> None:
    agenda = Agenda()
    agenda.set_time(_tp(0), 5.0)
    agenda.set_time(_tp(0), 9.0)
    agenda.set_time(_tp(1), 6.0)
    agenda.set_time(_tp(1), None)
    assert agenda.next_at == 9.0
    assert agenda.take(8.0) == []
    agenda.forget(_tp(0))
    assert agenda.take(10.0) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(1, 20)), max_size=40))
def test_each_partition_is_taken_at_its_last_time(steps: list[tuple[int, int | None]]) -> None:
    agenda, expected = Agenda(), dict[TopicPartition, int]()
    for number, at in steps:
        agenda.set_time(_tp(number), at)
        expected.pop(_tp(number), None)
        if at is not None:
            expected[_tp(number)] = at
    for now in range(21):
        assert agenda.next_at == min(expected.values(), default=None)
        due = {tp for tp, at in expected.items() if at <= now}
        assert set(agenda.take(now)) == due
        expected = {tp: at for tp, at in expected.items() if tp not in due}


def _reader(left_out: float | None = None) -> SourceReader:
    reader = SourceReader()
    reader.plan(_tp(0), _at(0), None)
    if left_out is not None:
        reader.plan(_tp(1), None, left_out)
    return reader


def _fetch(reader: SourceReader, now: float = 0.0) -> int:
    wait_ms = reader.begin(now, LONGEST_MS)
    reader.session.next_request(uses_ids=False)
    reader.end()
    return wait_ms


def test_fetches_wait_longer_while_a_partition_has_no_room() -> None:
    reader = _reader(UNTIL_ROOM)
    waits = [_fetch(reader) for _ in range(8)]
    assert waits == [10, 20, 40, 80, 160, 320, 500, 500]
    # It has room, is fetched, and is full again.
    reader.plan(_tp(1), _at(1), None)
    assert _fetch(reader) == LONGEST_MS
    reader.plan(_tp(1), None, UNTIL_ROOM)
    assert _fetch(reader) == 10


def test_a_fetch_waits_no_longer_than_until_a_failed_partition_is_tried_again() -> None:
    reader = _reader(left_out=3.2)
    assert _fetch(reader, now=3.0) == 200
    assert _fetch(reader, now=3.199) == 10
    # Being tried again is no room: another partition without room does not become urgent.
    reader.plan(_tp(2), None, UNTIL_ROOM)
    assert [_fetch(reader), _fetch(reader)] == [10, 20]
    reader.plan(_tp(1), _at(1), None)
    assert _fetch(reader) == 40


def test_what_is_in_flight_is_deferred_until_the_answer() -> None:
    reader = _reader()
    assert not reader.is_in_flight(_tp(0))
    reader.begin(0.0, LONGEST_MS)
    reader.session.next_request(uses_ids=False)
    reader.plan(_tp(1), _at(1), None)  # for the next fetch
    assert reader.is_in_flight(_tp(0))
    assert not reader.is_in_flight(_tp(1))
    reader.defer(_tp(0))
    assert reader.end() == {_tp(0)}
    assert not reader.is_in_flight(_tp(0))
    assert reader.end() == set()


def test_a_partition_that_is_dropped_is_in_no_fetch() -> None:
    reader = _reader(UNTIL_ROOM)
    reader.drop(_tp(0))
    reader.drop(_tp(1))
    assert not len(reader.session)
    assert _fetch(reader) == LONGEST_MS
