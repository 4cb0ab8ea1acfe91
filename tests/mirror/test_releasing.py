"""A partition is released for two reasons at once: its topic was created again, and it resumes."""

import asyncio
from unittest.mock import Mock

import pytest

from shoal.client.client import Client
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import PartitionCopier
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.run.runner import MirrorRunner
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from support.mirror.batches import record_set, stored_batch

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize("order", [(False, True), (True, False), (True, True)])
async def test_everyone_who_waits_for_a_release_learns_of_it(order: tuple[bool, bool]) -> None:
    source, target = (Client({"bootstrap.servers": "127.0.0.1:1"}) for _ in range(2))
    runner = MirrorRunner(
        source, target, Mock(), limits=MirrorLimits(), throttle=Throttle(), topic_throttles={}
    )
    runner._pump = Mock()  # type: ignore[method-assign]
    delivery = IdempotentDelivery(ProducerIdentity(1, 0))
    mirror = PartitionCopier(Intake(PARTITION), delivery, 0, Backoff(100, 1000))
    runner.add([mirror])
    work = runner._works[PARTITION]
    mirror.on_fetched(record_set(stored_batch(0, 2)), aborted=(), last_stable_offset=2)
    sent = mirror.next_batch(0.0)
    assert sent is not None
    mirror.mark_sent(sent)
    waiting = [asyncio.create_task(runner.release([PARTITION], sends_rest=each)) for each in order]
    await asyncio.sleep(0)
    assert not runner._remove_if_drained(work)  # a batch is in flight
    mirror.on_produce_result(sent, ProduceResult(Outcome.OK), now=0.0)
    assert runner._remove_if_drained(work)
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [[mirror], [mirror]]
