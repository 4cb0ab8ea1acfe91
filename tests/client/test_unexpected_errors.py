"""Background work of a client fails unexpectedly: waiting callers get the error."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.groups.group_consumer import GroupConsumer
from shoal.client.groups.membership import Membership
from shoal.client.produce import producer as producer_module
from shoal.client.produce import sender as sender_module
from shoal.client.produce.producer import Producer
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Outcome
from shoal.runtime.tasks import failure_counts
from shoal.wire.records.records import encode_batch

pytestmark = pytest.mark.slow

PATIENCE_S = 60


@pytest.fixture(scope="module")
def lite() -> Iterator[LiteCluster]:
    with LiteCluster() as running:
        yield running


def count_of(name: str) -> int:
    return sum(each.count for each in failure_counts() if each.name == name)


async def test_a_failed_sender_fails_its_batches_and_the_next_ones(
    lite: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> Any:
        raise KeyError("unexpected")

    before = count_of("produce request")
    async with Client({"bootstrap.servers": lite.bootstrap}) as client:
        await client.admin.create_topics([NewTopic("sender", 1, 1)])
        monkeypatch.setattr(sender_module, "submit_produce", lambda *_, **__: fail())
        async with Producer(client) as producer, asyncio.timeout(PATIENCE_S):
            first = await (await producer.send("sender", b"a"))
            # The request had been handed over: it may have been written.
            assert first.outcome is Outcome.UNKNOWN
            second = await (await producer.send("sender", b"b"))
            assert second.outcome is Outcome.FAILED
            assert "internal error of the producer: KeyError" in str(second.cause)
    assert count_of("produce request") == before + 1


async def test_a_batch_that_cannot_be_made_fails_alone(
    lite: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(records: Any, **options: Any) -> Any:
        if records[0].value == b"bad":
            raise LookupError("unexpected")
        return encode_batch(records, **options)

    monkeypatch.setattr(producer_module, "encode_batch", encode)
    async with Client({"bootstrap.servers": lite.bootstrap}) as client:
        await client.admin.create_topics([NewTopic("piles", 1, 1)])
        async with Producer(client) as producer, asyncio.timeout(PATIENCE_S):
            bad = await (await producer.send("piles", b"bad"))
            good = await (await producer.send("piles", b"good"))
    assert bad.outcome is Outcome.FAILED
    assert good.outcome is Outcome.OK


async def test_a_member_without_heartbeats_raises_at_its_next_poll(
    lite: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Membership) -> None:
        raise KeyError("unexpected")

    properties = {
        "bootstrap.servers": lite.bootstrap,
        "group.id": "heartless",
        "heartbeat.interval.ms": "50",
        "auto.offset.reset": "earliest",
    }
    async with Client(properties) as client:
        await client.admin.create_topics([NewTopic("heartless", 1, 1)])
        async with GroupConsumer(client, ["heartless"]) as consumer:
            await consumer.poll_batches(100)
            monkeypatch.setattr(Membership, "_send_heartbeat", fail)
            with pytest.raises(ClientError, match="the heartbeats of group heartless have stopped"):
                await poll_for_long(consumer)


async def poll_for_long(consumer: GroupConsumer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        await consumer.poll_batches(100)
