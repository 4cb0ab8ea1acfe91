"""What Spark calls for `spark.read.format("shoal")` and `spark.readStream.format("shoal")`.

Rules:
- What it calls for writes is in `shoal.pipeline.sink.writer`.
- Spark creates these objects in several Python processes; they hold only the options, and this
  module imports nothing heavy.
- A stream's offset is `{topic: {partition: next offset}}`, as the connector writes it.
- A stream waits for `minOffsetsPerTrigger` offsets, at most for `maxTriggerDelay`; its first
  micro-batch does not wait, and `availableNow` reads everything available.
- With failOnDataLoss=false, a log that was truncated or recreated is read from its end, as the
  connector does: records below may have been read before.
- Partitions that appear after a stream began are read from their beginning.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from shoal.model.topics import TopicPartition
from shoal.pipeline.source.options import BATCHES, Query, parse

if TYPE_CHECKING:
    from shoal.pipeline.source.filters import FilterLimits
    from shoal.pipeline.source.offset_ranges import Offsets, Range

# Offsets by partition, by topic.
Json = dict[str, dict[str, int]]


class ShoalSource(DataSource):
    """Kafka topics as a table: rows are records, or batches with `mode=batches`."""

    @classmethod
    def name(cls) -> str:
        return "shoal"

    def schema(self) -> str:
        from shoal.pipeline.source import columns

        query = parse(self.options)
        if query.mode == BATCHES:
            return columns.BATCH_SCHEMA
        return columns.RECORD_SCHEMA + (columns.HEADERS_SCHEMA if query.include_headers else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        query = parse(self.options, is_stream=False)
        return FilteringReader(query) if query.push_filters else ShoalReader(query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        del schema
        return ShoalStreamReader(parse(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from shoal.pipeline.sink.writer import make_writer

        return make_writer(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from shoal.pipeline.sink.writer import make_stream_writer

        return make_stream_writer(dict(self.options), schema, overwrite=overwrite)


class RangePartition(InputPartition):
    """A range as Spark sends it to a task."""

    def __init__(self, part: "Range") -> None:
        super().__init__(None)
        self.part = part


class ShoalReader(DataSourceReader):
    def __init__(self, query: Query) -> None:
        self._query = query
        self._limits: FilterLimits | None = None

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(part) for part in asyncio.run(self._plan())]

    async def _plan(self) -> "list[Range]":
        from shoal.client.client import Client
        from shoal.pipeline.source import offset_ranges

        query = self._query
        async with Client(dict(query.properties)) as client:
            logs = await offset_ranges.partitions_of(client, query)
            starts = await offset_ranges.resolve(client, query, query.start, logs)
            ends = await offset_ranges.resolve(client, query, query.end, logs)
            offset_ranges.refuse_reversed(starts, ends)
            if self._limits is not None:
                starts, ends = self._limits.clip(starts, ends)
                starts = await offset_ranges.raise_to_time(client, starts, ends, self._limits)
            ranges = await offset_ranges.build_ranges(client, query, starts, ends)
        return offset_ranges.split(
            ranges, query.min_partitions, most=query.max_records_per_partition
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._query, partition)


class FilteringReader(ShoalReader):
    """A reader of its own, because Spark refuses `pushFilters` where its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        from shoal.pipeline.source.filters import limits_of

        self._limits = limits_of(filters, has_records=self._query.mode != BATCHES)
        return filters


class ShoalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, query: Query) -> None:
        self._query = query
        self._target: Offsets | None = None
        # When the last micro-batch was due.
        self._last_trigger_s = -math.inf

    def initialOffset(self) -> Json:  # noqa: N802
        return _to_json(asyncio.run(self._offsets(at_start=True)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._query.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        from shoal.pipeline.source import offset_ranges

        ends = self._target or asyncio.run(self._offsets(at_start=False))
        starts = _from_json(start)
        offset_ranges.check_data_loss(self._query, starts, ends)
        if self._target is None and self._should_wait(starts, ends):
            return start
        self._last_trigger_s = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            ends = offset_ranges.limit_ends(starts, ends, limit.max_rows)
        return _to_json(ends)

    def _should_wait(self, starts: "Offsets", ends: "Offsets") -> bool:
        least = self._query.min_offsets_per_trigger
        if (
            least is None
            or time.monotonic() - self._last_trigger_s >= self._query.max_trigger_delay_s
        ):
            return False
        return sum(max(end - starts.get(log, 0), 0) for log, end in ends.items()) < least

    def reportLatestOffset(self) -> Json:  # noqa: N802
        return _to_json(asyncio.run(self._offsets(at_start=False)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = asyncio.run(self._offsets(at_start=False))

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        return [RangePartition(part) for part in asyncio.run(self._ranges(start, end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._query, partition)

    def commit(self, end: Json) -> None:
        """Do nothing: all state is in Spark's checkpoint."""

    async def _offsets(self, *, at_start: bool) -> "Offsets":
        from shoal.client.client import Client
        from shoal.client.results import LATEST
        from shoal.pipeline.source import offset_ranges
        from shoal.pipeline.source.options import Bound

        query = self._query
        async with Client(dict(query.properties)) as client:
            logs = await offset_ranges.partitions_of(client, query)
            bound = query.start if at_start else Bound(LATEST)
            return await offset_ranges.resolve(client, query, bound, logs)

    async def _ranges(self, start: Json, end: Json) -> "list[Range]":
        from shoal.client.client import Client
        from shoal.client.results import EARLIEST
        from shoal.pipeline.source import offset_ranges

        query, starts, ends = self._query, _from_json(start), _from_json(end)
        async with Client(dict(query.properties)) as client:
            new = [log for log in ends if log not in starts]
            if new:
                listed = await client.list_offsets(dict.fromkeys(new, EARLIEST))
                starts |= {log: listed[log].offset for log in new}
            known = {log: starts[log] for log in ends}
            ranges = await offset_ranges.build_ranges(client, query, known, ends)
        return offset_ranges.split(
            ranges, query.min_partitions, most=query.max_records_per_partition
        )


def _read(query: Query, partition: InputPartition) -> Iterator[Any]:
    from shoal.pipeline.source.reading import read_range

    if not isinstance(
        partition, RangePartition
    ):  # Spark's own empty partition if no range was planned
        return iter(())
    return read_range(query, partition.part)


def _to_json(offsets: "Offsets") -> Json:
    nested: Json = {}
    for log, offset in sorted(offsets.items()):
        nested.setdefault(log.topic, {})[str(log.partition)] = offset
    return nested


def _from_json(nested: Json) -> "Offsets":
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in nested.items()
        for partition, offset in offsets.items()
    }
