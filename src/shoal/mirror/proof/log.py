"""The log of one side of a comparison, read in order by batch or by record.

Rules:
- It is read up to a given end, without aborted and control batches.
- It keeps a rolling checksum of its batches that were compared to the end: of their checksums and
  last offsets, in order.
"""

from collections import deque
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.model.topics import TopicPartition
from shoal.wire.batch import TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import CorruptBatch
from shoal.wire.records.message_sets import read_batches
from shoal.wire.records.records import Record, decode_records

# How long a partition may take to answer before it counts as not available.
ANSWER_S: Final = 10.0
CHECKSUM_BYTES: Final = 8
CLEANUP: Final = "cleanup.policy"


class Tail(NamedTuple):
    """The last batch of a log that was compared to its end: its last offset and its CRC."""

    last_offset: Annotated[int, "last_offset"]
    crc: Annotated[int, "crc"]


class DamagedBatch(Exception):
    """A batch has a wrong CRC."""

    def __init__(self, log: "Log", offset: int) -> None:
        super().__init__()
        self.log = log
        self.offset = offset


class Log:
    """The log of one side, read in order by batch or by record."""

    def __init__(self, client: Client, tp: TopicPartition, first: int, end: int) -> None:
        self.end = end
        self._client = client
        self._tp = tp
        self._position = first
        self._batches: deque[Batch] = deque()
        self._records: deque[Record] = deque()
        self._opened: Batch | None = None  # whose records are in `_records`
        self.has_append_times = False
        self.saw_append_times = False  # in any batch that was read by record
        self.checksum = ""
        self.tail: Tail | None = None

    @property
    def next_offset(self) -> int:
        """Everything below was compared or skipped."""
        if self._records:
            return self._records[0].offset
        return self._batches[0].base_offset if self._batches else self._position

    def skip_to(self, offset: int) -> None:
        """Begin no earlier than at this offset; before anything is read."""
        self._position = max(self._position, offset)

    async def is_compacted(self) -> bool:
        """Whether the broker may remove records from the middle of this log."""
        topic = Resource(ResourceType.TOPIC, self._tp.topic)
        found = await self._client.admin.describe_configs([topic], names=[CLEANUP])
        entry = found[topic].get(CLEANUP)
        return entry is not None and "compact" in (entry.value or "")

    async def peek_batch(self) -> Batch | None:
        """Return the next batch without consuming it; None if some of its records are consumed."""
        if not self._records:
            await self._fill()
        return self._batches[0] if self._batches and not self._records else None

    async def peek_record(self) -> Record | None:
        """Return the next record without consuming it."""
        if not self._records:
            await self._fill()
        if not self._records and self._batches:
            self._open(self._batches.popleft(), 0)
        return self._records[0] if self._records else None

    def skip_record(self) -> None:
        """Consume the next record, which is not compared."""
        self._records.popleft()

    async def skip_all(self) -> int:
        """Consume all records up to the end; returns how many."""
        count = 0
        while await self.peek_record() is not None:
            self.skip_record()
            count += 1
        return count

    def read_again(self, offset: int) -> None:
        """Return to an offset; nothing behind it was compared."""
        self._position = offset
        self._batches.clear()
        self._records.clear()

    def drop_batch(self) -> None:
        self._add_to_checksum(self._batches.popleft())

    def drop_record(self) -> None:
        self._records.popleft()
        if not self._records and self._opened is not None:
            self._add_to_checksum(self._opened)

    def _add_to_checksum(self, batch: Batch) -> None:
        self.tail = Tail(batch.last_offset, batch.crc)
        text = f"{self.checksum} {batch.last_offset} {batch.crc}".encode()
        self.checksum = blake2b(text, digest_size=CHECKSUM_BYTES).hexdigest()

    def _open(self, batch: Batch, first: int) -> None:
        self._opened = batch
        self.has_append_times = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
        self.saw_append_times |= self.has_append_times
        self._records.extend(r for r in decode_records(batch) if r.offset >= first)

    async def _fill(self) -> None:
        while not self._batches and not self._records and self._position < self.end:
            await self._client.with_retries(self._fetch, timeout_s=ANSWER_S)
        if self._batches:
            self._check(self._batches[0])

    def _check(self, batch: Batch) -> None:
        try:
            batch.check_crc()
        except CorruptBatch:
            raise DamagedBatch(self, batch.base_offset) from None

    async def _fetch(self) -> None:
        tp, position = self._tp, self._position
        part = (await self._client.fetch({tp: position}, isolation="read_committed"))[tp]
        if part.error_code != Code.NONE:
            raise error_for(
                part.error_code, topic=tp.topic, partition=tp.partition, offset=position
            )
        aborted_filter = AbortedFilter(part.aborted)
        for batch, _ in read_batches(part.records):
            standing = aborted_filter.classify(batch)
            if batch.last_offset < position:
                continue
            if batch.base_offset >= self.end:
                self._position = self.end  # compaction removed what was before it
                continue
            self._position = batch.next_offset
            if standing is BatchKind.DATA and batch.record_count:
                self._take(batch, position)

    def _take(self, batch: Batch, position: int) -> None:
        if batch.base_offset < position:  # the log starts inside this batch
            self._check(batch)
            self._open(batch, position)
        else:
            self._batches.append(batch)
