"""One partition that is written in transactions: what is taken, committed and forgotten; pure."""

import pytest

from shoal.client.results import EARLIEST, LATEST, ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery, TransactionalMirror
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import Outgoing, PartitionCopier
from shoal.mirror.run.start_position import start_timestamp
from shoal.model.errors import ConfigError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from support.mirror.batches import record_set, stored_batch

ROOM = 1 << 20


def _mirror() -> TransactionalMirror:
    backoff = Backoff(100, 1000, chance=lambda: 0.5)
    intake = Intake(TopicPartition("t", 0))
    mirror = PartitionCopier(intake, TransactionalDelivery(), 0, backoff)
    batches = [stored_batch(first, 10) for first in range(0, 50, 10)]
    mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=50)
    return mirror


def _write(mirror: TransactionalMirror, taken: list[Outgoing], offset: int) -> None:
    for outgoing in taken:
        mirror.delivery.on_written(outgoing, ProduceResult(Outcome.OK, base_offset=offset))
        offset += outgoing.batch.record_count


def test_what_was_taken_counts_when_it_is_committed() -> None:
    mirror = _mirror()
    taken = mirror.delivery.take(len(stored_batch(0, 10)) + len(stored_batch(10, 10)))
    assert [out.source_offset for out in taken] == [0, 10]
    assert (mirror.done, mirror.delivery.next_position, mirror.delivery.has_more) == (0, 20, True)
    _write(mirror, taken, 0)
    assert (mirror.done, mirror.counts.records) == (0, 0)
    mirror.delivery.on_committed()
    assert (mirror.done, mirror.counts.records, mirror.target_offset) == (20, 20, 20)
    _write(mirror, mirror.delivery.take(ROOM), 21)  # behind the marker
    mirror.delivery.on_committed()
    assert (mirror.done, mirror.counts.displaced, mirror.target_offset) == (50, 0, 51)
    assert (mirror.queued_bytes, mirror.delivery.has_more, mirror.queue.in_flight) == (0, False, 0)


def test_a_batch_that_stands_elsewhere_tells_of_another_writer() -> None:
    mirror = _mirror()
    _write(mirror, mirror.delivery.take(1), 0)
    mirror.delivery.on_committed()
    _write(mirror, mirror.delivery.take(1), 14)
    assert mirror.counts.displaced == 1


def test_a_transaction_that_failed_is_as_if_it_had_never_been() -> None:
    mirror = _mirror()
    _write(mirror, mirror.delivery.take(1), 0)
    mirror.delivery.on_committed()
    mirror.delivery.take(ROOM)
    mirror.delivery.rewind(10, 10)
    assert (mirror.position, mirror.done, mirror.delivery.has_more, mirror.queued_bytes) == (
        10,
        10,
        False,
        0,
    )
    mirror.on_fetched(record_set(stored_batch(10, 10)), aborted=(), last_stable_offset=50)
    (again,) = mirror.delivery.take(ROOM)
    # Aborted batches and their marker lie between.
    _write(mirror, [again], 52)
    assert (again.source_offset, mirror.counts.displaced) == (10, 0)


def test_at_the_end_only_what_is_in_the_open_transaction_is_waited_for() -> None:
    mirror = _mirror()
    taken = mirror.delivery.take(1)
    mirror.forget_unsent()
    assert (mirror.delivery.next_position, mirror.delivery.has_more) == (10, False)
    _write(mirror, taken, 0)
    mirror.delivery.on_committed()
    assert (mirror.done, mirror.queued_bytes) == (10, 0)


@pytest.mark.parametrize(
    ("start", "timestamp"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("1769860800000", 1_769_860_800_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31 12:00", 1_769_860_800_000),
        ("2026-01-31", 1_769_817_600_000),
    ],
)
def test_a_start_is_a_name_or_a_time(start: str, timestamp: int) -> None:
    assert start_timestamp(start) == timestamp


@pytest.mark.parametrize("start", ["", "yesterday", "-5", "12:00", str(1 << 63)])
def test_a_start_that_is_none_is_refused(start: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid --start"):
        start_timestamp(start)
