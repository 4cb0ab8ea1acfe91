"""One range of one partition, as Arrow batches.

Rules:
- The next fetch is on its way before what the last one brought is taken apart.
- Control batches, and for `read_committed` aborted ones, are no records; batch mode shows
  every batch whose base offset lies in the range, so that no two tasks show the same one.
- A leader that moves or dies is looked for again, until the client's own time-out.
- The range is read to its end, or it is an error: a task never returns less in silence.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

from shoal.audit.memory import keep_freed_memory, spare_what_is_loaded
from shoal.client.client import Client
from shoal.client.codes import Code, facts_of
from shoal.client.consume.isolation import Sieve, Standing
from shoal.client.errors import error_for
from shoal.model.errors import SystemFailure
from shoal.pipeline.source.columns import batch_rows, record_rows
from shoal.pipeline.source.options import BATCHES, Query
from shoal.pipeline.source.places import Range
from shoal.runtime.tasks import run_awaited
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.fetch import FetchedPartition

FETCH_BYTES: Final = 8 * 1024 * 1024
# One fetch is being received while Spark takes the last, and what came before is freed late.
_SPARES: Final = {"shoal.receive.spares": "3"}
_PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 60.0


def read_range(query: Query, part: Range) -> Iterator[Any]:
    """Everything in the range. Runs an event loop of its own."""
    keep_freed_memory()
    with asyncio.Runner() as runner:
        # Not `runner.run`: for Ctrl-C, which is not for Spark's workers, it prints all rows to
        # a string each time.
        run = runner.get_loop().run_until_complete
        reader = _RangeReader(query, part)
        try:
            run(reader.open())
            while (rows := run(reader.next())) is not None:
                if rows.num_rows:
                    yield rows
        finally:
            run(reader.close())
    spare_what_is_loaded()


class _RangeReader:
    def __init__(self, query: Query, part: Range) -> None:
        self._query = query
        self._part = part
        self._position = part.start
        self._client = Client(_SPARES | dict(query.properties))
        self._isolation = query.properties.get("isolation.level", "read_uncommitted")
        self._under_way: asyncio.Task[FetchedPartition] | None = None
        self._progress_s = time.monotonic()

    async def open(self) -> None:
        await self._client.__aenter__()
        self._ask()

    async def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def next(self) -> Any:
        """Some rows, perhaps none; None at the end of the range."""
        if self._under_way is None:
            return None
        answer = await self._under_way
        if answer.error_code != Code.NONE:
            await self._complain(answer)
            self._ask()
            return batch_rows(self._part.log, [], memoryview(b""))
        start = self._position
        batches, records = self._advance(answer)
        self._ask()
        # Lets the request leave before we are busy.
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

    def _ask(self) -> None:
        self._under_way = None
        if self._position < self._part.end:
            self._under_way = run_awaited("fetch", self._fetch())

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
        """Moves the position over the answer.

        Returns the batches of it that are asked for, and what of it begins with the first.
        """
        found: list[Batch] = []
        skipped_bytes = 0
        is_filtered = self._isolation == "read_committed"
        sieve = Sieve(answer.aborted if is_filtered else ())
        before = self._position
        for batch in iter_batches(answer.records):
            if batch.next_offset <= self._position:
                skipped_bytes += batch.size
                continue
            if batch.base_offset >= self._part.end:
                self._position = self._part.end  # what lay between was compacted away
                break
            if self._query.mode == BATCHES:
                is_wanted = batch.base_offset >= self._part.start
            else:
                is_wanted = sieve.judge(batch) is Standing.DATA
            if is_wanted:
                found.append(batch)
            elif not found:
                skipped_bytes += batch.size
            self._position = batch.next_offset
        if self._position > before:
            self._progress_s = time.monotonic()
        elif time.monotonic() - self._progress_s > _PATIENCE_S:
            raise SystemFailure(
                f"{self._part.log} gives nothing from offset {self._position} on, and"
                f" {self._part.end} was its end when the query was planned",
                remedy="records were deleted meanwhile, or a transaction is still open",
            )
        return found, answer.records[skipped_bytes:]

    async def _complain(self, answer: FetchedPartition) -> None:
        log, code = self._part.log, answer.error_code
        is_lost = code == Code.OFFSET_OUT_OF_RANGE
        if is_lost and not self._query.fail_on_data_loss:
            self._position = max(self._position, answer.log_start_offset)
            if answer.log_start_offset >= 0:
                return
        if not facts_of(code).retriable or time.monotonic() - self._progress_s > _PATIENCE_S:
            raise error_for(code, topic=log.topic, partition=log.partition)
        await asyncio.sleep(_PAUSE_S)
