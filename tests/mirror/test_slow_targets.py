"""A broker of the target that does not answer delays its own partitions, and no other."""

import asyncio
from functools import partial

from shoal.client.codes import Code
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig, MirrorLimits
from shoal.mirror.pump.queue_room import QueueRoom
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from support.mirror.copies import assert_same, config_of, fill, make_topic
from support.mirror.leaderless import make_placed
from support.mirror.runs import running

PATIENT_MS = 300_000
LIMITS = MirrorLimits(
    queue_bytes=64 << 10, partition_bytes=8 << 10, fetch_bytes=16 << 10, request_bytes=16 << 10
)


def _positions(status: MirrorStatus, topic: str) -> int:
    return sum(max(0, at) for tp, at in status.positions.items() if tp.topic == topic)


def _large(number: int) -> str:
    return f"{number} " + "k" * 2000


async def test_a_broker_that_hangs_holds_back_no_partition_of_another() -> None:
    properties = {"broker.session.timeout.ms": str(PATIENT_MS)}
    with (
        LiteCluster() as source,
        LiteCluster(brokers=2, profile="available", properties=properties) as target,
    ):
        for topic, node in (("hung", 2), ("free", 1)):
            await make_topic(source.bootstrap, topic, 20)
            await make_placed(target, topic, {number: [node] for number in range(20)})
        config = MirrorConfig(
            {"bootstrap.servers": source.bootstrap},
            {"bootstrap.servers": target.bootstrap, "request.timeout.ms": PATIENT_MS},
            ("hung", "free"),
            name="m",
            limits=LIMITS,
        )
        async with running(config) as mirror:
            for topic in ("hung", "free"):
                await asyncio.to_thread(fill, source.bootstrap, topic, range(20), partitions=20)
            await mirror.copied(40)
            await asyncio.to_thread(target.pause, 2)
            await asyncio.to_thread(
                fill, source.bootstrap, "hung", range(20, 400), partitions=20, key=_large
            )
            await asyncio.to_thread(fill, source.bootstrap, "free", range(20, 400), partitions=20)
            status = await mirror.until(lambda status: _positions(status, "free") == 400)
            # No request to the other broker has ended yet: nothing else made room.
            assert _positions(status, "hung") < 400
            assert not any(each.waiting for each in status.partitions)
            await asyncio.to_thread(target.resume, 2)
            await mirror.copied(800)
        for topic in ("hung", "free"):
            await assert_same(source.bootstrap, target.bootstrap, topic, 400, 20)


async def test_refused_partitions_hold_a_bounded_amount_and_recover(
    source: LiteCluster, target: LiteCluster
) -> None:
    rooms: list[QueueRoom] = []
    original = QueueRoom.__init__

    def keep(self: QueueRoom, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        rooms.append(self)

    for topic in ("refused", "beside"):
        await make_topic(source.bootstrap, topic, 30)
        await make_topic(target.bootstrap, topic, 30)
    fault = partial(target.fail_requests, times=1_000_000, error=int(Code.NOT_ENOUGH_REPLICAS))
    config = config_of(source.bootstrap, target.bootstrap, "refused", "beside", limits=LIMITS)
    tps = [TopicPartition("refused", number) for number in range(30)]
    QueueRoom.__init__ = keep  # type: ignore[method-assign,assignment]
    try:
        most = 0
        async with running(config) as mirror:
            await mirror.until(lambda status: status.lag == 0)
            await asyncio.to_thread(fault, 1, ApiKey.PRODUCE)
            await asyncio.to_thread(
                fill, source.bootstrap, "refused", range(1200), partitions=30, key=_large
            )
            # Until all were refused, and some of them again, after they have dropped their batches.
            for _ in range(60):
                await asyncio.sleep(0.1)
                most = max([most, *(room.total_bytes for room in rooms)])
            status = await mirror.until(lambda s: any(each.waiting for each in s.partitions))
            assert _positions(status, "refused") == 0
            await asyncio.to_thread(target.heal)
            await asyncio.to_thread(fill, source.bootstrap, "beside", range(60), partitions=30)
            await mirror.until(lambda s: sum(s.positions.get(tp, 0) for tp in tps) == 1200)
            await mirror.until(lambda s: _positions(s, "beside") == 60)
    finally:
        QueueRoom.__init__ = original  # type: ignore[method-assign]
        await asyncio.to_thread(target.heal)
    assert 0 < most <= 4 * LIMITS.queue_bytes + 2 * LIMITS.fetch_bytes
    await assert_same(source.bootstrap, target.bootstrap, "refused", 1200, 30)
