"""Which batches of the target were packed anew, in a file that the audit reads.

The file has one JSON object on each line: `format`, and `topic`, `partition` and `offset` of the
target, of the first record of a batch whose bytes are not those of the source. Lines of format 1
may lack `format`: they were written before it was.

Rules:
- A batch is declared before it is sent, at the offset that is next, and once more where it was
  acknowledged, if that is elsewhere: whatever is killed in between, nothing at the target lacks
  its line. So there may be lines of batches that never arrived.
- Lines are only added, each by one write: several workers, and one start after another, share a
  file.
"""

import json
from pathlib import Path
from typing import Final

from shoal.model.errors import LedgerError
from shoal.model.serialised import check_version
from shoal.model.topics import TopicPartition

FORMAT: Final = 1
FILE_LIMIT_BYTES: Final = 256 << 20


class ReEncodedFile:
    """Takes the declarations of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._add(b"")  # a place that cannot be written to must show before anything is copied

    def declare(self, target: TopicPartition, offset: int) -> None:
        row = {
            "format": FORMAT,
            "topic": target.topic,
            "partition": target.partition,
            "offset": offset,
        }
        self._add(f"{json.dumps(row)}\n".encode())

    def _add(self, line: bytes) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            raise LedgerError(
                f"what is packed anew cannot be written down in {self._path}: {error.strerror}",
                remedy="name a file in a folder that exists, here and wherever workers run",
            ) from error


def read_re_encoded(path: Path) -> set[tuple[TopicPartition, int]]:
    """Partitions of the target and first offsets of batches; a last line may be cut."""
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise LedgerError(f"{path} is too large for a list of batches")
        found = set()
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                check_version(row.get("format", FORMAT), (FORMAT,))
                partition = TopicPartition(str(row["topic"]), int(row["partition"]))
                found.add((partition, int(row["offset"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"{path} is no list of batches: {error}") from error
    return found
