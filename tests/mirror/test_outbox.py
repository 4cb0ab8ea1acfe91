"""No partition that has much to send lets another wait for the same broker."""

import pytest

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import Delivery, PartitionCopier
from shoal.mirror.pump.outbox import Outbox
from shoal.mirror.pump.work import PartitionWork
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from support.mirror.batches import record_set, stored_batch

OK = ProduceResult(Outcome.OK)
NODE = 1


def _work(number: int, batches: int, *, appends: bool = False) -> PartitionWork:
    tp = TopicPartition("t", number)
    delivery: Delivery = IdempotentDelivery(ProducerIdentity(7, 0), is_known_at_start=True)
    if appends:
        delivery = AppendDelivery(mirror_epoch=1, existing_until=0, agreed_end=0, tail=None)
    intake = Intake(tp, keeps_offsets=appends)
    mirror = PartitionCopier(intake, delivery, 0, Backoff(1, 1))
    stored = [stored_batch(offset, 1) for offset in range(batches)]
    mirror.on_fetched(record_set(*stored), aborted=(), last_stable_offset=batches)
    return PartitionWork(mirror)


@pytest.mark.parametrize("room_bytes", [1, 200, 1 << 20])
def test_a_busy_partition_lets_each_other_send_in_its_turn(room_bytes: int) -> None:
    busy, others = _work(0, 500), [_work(number, 1) for number in range(1, 20)]
    outbox = Outbox()
    for work in (busy, *others):
        outbox.put(work, NODE)
    for _ in range(len(others) + 1):
        singles, _units = outbox.take(NODE, 0.0, room_bytes)
        for mirror, outgoing in singles:
            mirror.on_produce_result(outgoing, OK, now=0.0)
        outbox.put(busy, NODE)  # it is looked at after each answer
    assert not any(work.mirror.queue.batches for work in others)


def test_partitions_with_and_without_compare_and_append_alternate() -> None:
    single, appending = _work(0, 50), _work(1, 50, appends=True)
    outbox, kinds = Outbox(), []
    for _ in range(6):
        outbox.put(single, NODE)
        outbox.put(appending, NODE)
        singles, units = outbox.take(NODE, 0.0, 1)
        for mirror, outgoing in singles:
            mirror.on_produce_result(outgoing, OK, now=0.0)
        kinds.append((bool(singles), bool(units)))
    # Only one unit of a partition is in flight, which was never answered here.
    assert kinds[:2] == [(True, False), (False, True)]
    assert kinds[2:] == [(True, False)] * 4
