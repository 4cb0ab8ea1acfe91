"""The pages of a metrics endpoint: native names, and the dialects of public dashboards.

A process gives a function that collects its families; each page renders them with its own table.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final

from shoal.telemetry.definitions import METRICS
from shoal.telemetry.dialects.dialect import Dialect
from shoal.telemetry.http_port import (
    BadPageRequest,
    EndpointSpec,
    HttpPort,
    Page,
    PageRequest,
    Readiness,
)
from shoal.telemetry.samples import Chunk, Families
from shoal.telemetry.text import TextWriter

NATIVE_PATH: Final = "/metrics"

Collect = Callable[[], Awaitable[Families]]


def make_port(
    spec: EndpointSpec, collect: Collect, readiness: Readiness, dialects: Mapping[str, Dialect]
) -> HttpPort:
    """The port of a process; `dialects` are served below `/metrics/`, by their names."""
    pages = {NATIVE_PATH: _native_page(collect)}
    for name, dialect in dialects.items():
        pages[f"{NATIVE_PATH}/{name}"] = _dialect_page(collect, dialect)
    return HttpPort(spec, pages, readiness)


def _native_page(collect: Collect) -> Page:
    writer = TextWriter(METRICS)

    async def page(request: PageRequest) -> AsyncIterator[str]:
        for part in writer.render(await collect(), is_open=request.is_open):
            yield part

    return page


def _dialect_page(collect: Collect, dialect: Dialect) -> Page:
    writer = TextWriter(dialect.metrics)

    async def page(request: PageRequest) -> AsyncIterator[str]:
        node = request.parameters.get("node", "")
        if node and not node.isdecimal():
            raise BadPageRequest("node must be the id of a broker")
        families = await gather_chunks(dialect.translate(await collect(), node))
        for part in writer.render(families, is_open=request.is_open):
            yield part

    return page


async def gather_chunks(chunks: Iterator[Chunk]) -> Families:
    """Merge the chunks of a collector, and let other work run between them."""
    families: Families = {}
    for name, samples in chunks:
        families.setdefault(name, []).extend(samples)
        await asyncio.sleep(0)
    return families
