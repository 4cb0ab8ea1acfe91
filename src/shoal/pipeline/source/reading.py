"""Reads one range of one partition as Arrow batches.

Rules:
- The next fetch is sent before the last response is decoded.
- Control batches, and with `read_committed` aborted batches, contain no records to return. Batch
  mode returns every batch whose base offset is in the range, so that no two tasks return the same
  one.
- If the leader moves or dies, the client looks for the new one until its own time-out.
- The range is read to its end, or the task fails: it never returns less silently.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

from shoal.audit.memory import freeze_loaded_objects, keep_freed_memory
from shoal.client.client import Client
from shoal.client.codes import Code, facts_of
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.model.errors import SystemFailure
from shoal.pipeline.source.columns import batch_rows, record_rows
from shoal.pipeline.source.offset_ranges import Range
from shoal.pipeline.source.options import BATCHES, Query
from shoal.runtime.tasks import run_awaited
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.fetch import FetchedPartition

FETCH_BYTES: Final = 8 * 1024 * 1024
# One buffer is received into, Spark still reads the last, and the one before is freed late.
_SPARES: Final = {"shoal.receive.spares": "3"}
_RETRY_PAUSE_S: Final = 0.1
_NO_PROGRESS_TIMEOUT_S: Final = 60.0


def read_range(query: Query, part: Range) -> Iterator[Any]:
    """Return all rows of the range. Runs its own event loop."""
    keep_freed_memory()
    with asyncio.Runner() as runner:
        # Not `runner.run`: it supports Ctrl-C, which Spark's workers do not need, and for that
        # formats all rows as a string on each call.
        run = runner.get_loop().run_until_complete
        reader = _RangeReader(query, part)
        try:
            run(reader.open())
            while (rows := run(reader.next())) is not None:
                if rows.num_rows:
                    yield rows
        finally:
            run(reader.close())
    freeze_loaded_objects()


class _RangeReader:
    def __init__(self, query: Query, part: Range) -> None:
        self._query = query
        self._part = part
        self._position = part.start
        self._client = Client(_SPARES | dict(query.properties))
        self._isolation = query.properties.get("isolation.level", "read_uncommitted")
        self._pending_fetch: asyncio.Task[FetchedPartition] | None = None
        self._last_progress_s = time.monotonic()

    async def open(self) -> None:
        await self._client.__aenter__()
        self._start_fetch()

    async def close(self) -> None:
        if self._pending_fetch is not None:
            self._pending_fetch.cancel()
            await asyncio.gather(self._pending_fetch, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def next(self) -> Any:
        """Return some rows, perhaps none; None at the end of the range."""
        if self._pending_fetch is None:
            return None
        answer = await self._pending_fetch
        if answer.error_code != Code.NONE:
            await self._on_fetch_error(answer)
            self._start_fetch()
            return batch_rows(self._part.log, [], memoryview(b""))
        start = self._position
        batches, records = self._advance(answer)
        self._start_fetch()
        # Let the request be sent before the decoding blocks the loop.
        await asyncio.sleep(0)
        if self._query.mode == BATCHES or not batches:
            return batch_rows(self._part.log, batches, records)
        return record_rows(
            self._part.log,
            batches,
            start=start,
            end=self._part.end,
            headers=self._query.include_headers,
        )

    def _start_fetch(self) -> None:
        self._pending_fetch = None
        if self._position < self._part.end:
            self._pending_fetch = run_awaited("fetch", self._fetch())

    async def _fetch(self) -> FetchedPartition:
        log = self._part.log
        fetched = await self._client.fetch(
            {log: self._position},
            max_bytes=FETCH_BYTES,
            partition_max_bytes=FETCH_BYTES,
            isolation=self._isolation,
        )
        return fetched[log]

    def _advance(self, answer: FetchedPartition) -> tuple[list[Batch], memoryview]:
        """Move the position past the response.

        Return the batches of the response that are wanted, and its bytes from the first of them.
        """
        found: list[Batch] = []
        skipped_bytes = 0
        is_filtered = self._isolation == "read_committed"
        aborted_filter = AbortedFilter(answer.aborted if is_filtered else ())
        before = self._position
        for batch in iter_batches(answer.records):
            if batch.next_offset <= self._position:
                skipped_bytes += batch.size
                continue
            if batch.base_offset >= self._part.end:
                self._position = self._part.end  # compaction removed the records between
                break
            if self._query.mode == BATCHES:
                is_wanted = batch.base_offset >= self._part.start
            else:
                is_wanted = aborted_filter.classify(batch) is BatchKind.DATA
            if is_wanted:
                found.append(batch)
            elif not found:
                skipped_bytes += batch.size
            self._position = batch.next_offset
        if self._position > before:
            self._last_progress_s = time.monotonic()
        elif time.monotonic() - self._last_progress_s > _NO_PROGRESS_TIMEOUT_S:
            raise SystemFailure(
                f"{self._part.log} returned nothing from offset {self._position} for"
                f" {_NO_PROGRESS_TIMEOUT_S:g} s, before the end of the range at {self._part.end}",
                remedy="check whether records were deleted or a transaction is still open",
            )
        return found, answer.records[skipped_bytes:]

    async def _on_fetch_error(self, answer: FetchedPartition) -> None:
        log, code = self._part.log, answer.error_code
        is_lost = code == Code.OFFSET_OUT_OF_RANGE
        if is_lost and not self._query.fail_on_data_loss:
            self._position = max(self._position, answer.log_start_offset)
            if answer.log_start_offset >= 0:
                return
        if (
            not facts_of(code).retriable
            or time.monotonic() - self._last_progress_s > _NO_PROGRESS_TIMEOUT_S
        ):
            raise error_for(code, topic=log.topic, partition=log.partition)
        await asyncio.sleep(_RETRY_PAUSE_S)
