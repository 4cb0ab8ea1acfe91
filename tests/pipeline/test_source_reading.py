"""One range of the data source, read from scripted responses."""

from collections.abc import Mapping
from typing import Any

import pytest

from shoal.model.topics import TopicPartition
from shoal.pipeline.source import reading
from shoal.pipeline.source.offset_ranges import Range
from shoal.pipeline.source.options import parse
from shoal.wire.fetch import FetchedPartition
from support.mirror.batches import record_set, stored_batch

LOG = TopicPartition("t", 0)


class CompactedLog:
    """A client of a log of which compaction left offsets 4 and 5, 40 and 41."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        del properties
        self._fetches = 0

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def fetch(self, positions: Mapping[TopicPartition, int], **settings: Any) -> Any:
        del settings
        self._fetches += 1
        assert self._fetches < 10, "asks for ever"
        batches = [stored_batch(base, 2) for base in (4, 40) if base + 2 > positions[LOG]]
        return {LOG: FetchedPartition("t", None, 0, records=record_set(*batches))}


@pytest.mark.parametrize("mode", ["records", "batches"])
@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(0, 3, []), (0, 4, []), (6, 20, []), (20, 40, []), (0, 41, [4, 5, 40]), (5, 6, [5])],
)
def test_a_range_of_which_compaction_left_nothing_has_an_end(
    monkeypatch: pytest.MonkeyPatch, mode: str, start: int, end: int, found: list[int]
) -> None:
    monkeypatch.setattr(reading, "Client", CompactedLog)
    query = parse({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "mode": mode})
    rows = list(reading.read_range(query, Range(LOG, start, end)))
    if mode == "records":
        assert [offset for some in rows for offset in some.column("offset").to_pylist()] == found
