"""Where the metadata log is kept: a partition's log like any other, forced to the disk.

    <folder>/__cluster_metadata-0/

The same files, batches and epochs as data have, so that replicas can fetch it as they fetch
data. What `append` returned for survives a power loss.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.lite.controller.records import Record, decode_record, encode_record
from shoal.lite.log.header import unpack_header
from shoal.lite.log.partition_log import Ended, PartitionLog
from shoal.lite.log.settings import LogSettings
from shoal.wire import records as wire_records
from shoal.wire.batch import iter_batches

METADATA_FOLDER = "__cluster_metadata-0"
_READ_BYTES = 1024 * 1024


class MetadataStorage:
    """The records of the metadata log, in order."""

    def __init__(self, folder: Path) -> None:
        # Its tail is checked in full whatever happened: it is short, and it is the truth.
        self._log = PartitionLog(folder / METADATA_FOLDER, LogSettings(), ended=Ended.UNKNOWN)

    @property
    def is_empty(self) -> bool:
        return self._log.end_offset == 0

    def append(self, records: Sequence[Record], *, epoch: int, now_ms: int) -> None:
        """Write records that belong together, all or none, to the disk."""
        batch = wire_records.encode_batch(
            [wire_records.Record(0, now_ms, None, encode_record(record)) for record in records]
        )
        view = memoryview(batch)
        self._log.append(view, unpack_header(view), leader_epoch=epoch)
        self._log.flush()

    def read_all(self) -> Iterator[Record]:
        """Every record from the beginning."""
        offset = self._log.start_offset
        while offset < self._log.end_offset:
            data = self._log.read(offset, _READ_BYTES, upper_offset=self._log.end_offset)
            for batch in iter_batches(memoryview(bytes(data))):
                for record in wire_records.decode_records(batch):
                    yield decode_record(record.value or b"")
                offset = batch.next_offset

    def close(self) -> None:
        self._log.close()
