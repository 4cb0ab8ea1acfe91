"""A page of many series beside an event loop that has other work to do.

Judged by the CPU time of the loop's own thread, which a busy machine does not change: how much of
it passed between two turns of the loop, as the loop watch of every broker measures it.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.runtime.loop_watch import LoopWatch
from shoal.telemetry.definitions import METRICS
from shoal.telemetry.dialects.strimzi import make_strimzi
from shoal.telemetry.endpoint import gather_chunks, make_port
from shoal.telemetry.http_port import EndpointSpec, HttpPort, PageRequest
from shoal.telemetry.samples import Chunk, Families, chunks_of

SERIES = 10_000
# Of each page the watch sees at least so many turns; a page that is made in one would be one.
FEWEST_TURNS = 8


def collect_chunks() -> Iterator[Chunk]:
    """What brokers with many partitions answer."""
    for name in ("shoal_broker_log_size_bytes", "shoal_partition_high_watermark"):
        labels = METRICS[name].labels
        samples = (
            (tuple("1" if one == "broker" else f"topic-{n}" for one in labels), n)
            for n in range(SERIES)
        )
        yield from chunks_of(name, samples)


async def collect() -> Families:
    return await gather_chunks(collect_chunks())


async def ready() -> None:
    return None


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """The garbage of a whole test session is not what is measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def fetch(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = bytearray()
    while part := await reader.read(65536):
        answer += part
    writer.close()
    return bytes(answer)


async def watch_turns(watch: LoopWatch) -> None:
    """Sample in each turn of the loop."""
    while True:
        watch.sample()
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/strimzi"])
async def test_a_page_of_many_series_never_holds_the_loop(path: str) -> None:
    port = make_port(EndpointSpec(0), collect, ready, {"strimzi": make_strimzi()})
    number = await port.start()
    watch = LoopWatch()
    turns = asyncio.create_task(watch_turns(watch))
    try:
        await asyncio.sleep(0)
        before_s = time.thread_time()
        answer = await fetch(number, path)
        used_s = time.thread_time() - before_s
    finally:
        turns.cancel()
        watch.close()
        await port.close()
    assert answer.count(b"\n") > SERIES
    assert watch.longest_hold_ms <= max(10, used_s * 1000 / FEWEST_TURNS)


async def test_a_page_in_one_piece_would_be_seen() -> None:
    """The measure above finds what it is for."""

    async def page(_request: PageRequest) -> AsyncIterator[str]:
        before_s = time.thread_time()
        while time.thread_time() - before_s < 0.3:
            pass
        yield "shoal_b 1\n"

    port = HttpPort(EndpointSpec(0), {"/metrics": page}, ready)
    number = await port.start()
    watch = LoopWatch()
    turns = asyncio.create_task(watch_turns(watch))
    try:
        await asyncio.sleep(0)
        await fetch(number, "/metrics")
    finally:
        turns.cancel()
        watch.close()
        await port.close()
    assert watch.longest_hold_ms >= 300
