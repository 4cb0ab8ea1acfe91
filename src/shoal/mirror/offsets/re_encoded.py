"""Lists the target batches that were re-encoded, in a file that the audit reads.

The file has one JSON object per line: `format`, and `topic`, `partition` and `offset` of the first
record of a target batch whose bytes differ from the source's. Lines of format 1 may lack `format`:
they were written before the field was added.

Rules:
- A batch is declared before it is sent, at the expected offset, and again at the acknowledged
  offset if that differs. So a batch at the target always has its line, even if the mirror is
  killed. There may be lines of batches that never arrived.
- Lines are only appended, each with one write: several workers, and successive starts, share a
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
    """Appends the declarations of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._add(b"")  # an unwritable file must be reported before anything is copied

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
                f"cannot write the list of re-encoded batches to {self._path}: {error.strerror}",
                remedy="choose a file in a folder that exists here and on all machines of workers",
            ) from error


def read_re_encoded(path: Path) -> set[tuple[TopicPartition, int]]:
    """Read target partitions and first offsets of batches; the last line may be incomplete."""
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise LedgerError(f"{path} is too large to be a list of re-encoded batches")
        found = set()
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                check_version(row.get("format", FORMAT), (FORMAT,))
                partition = TopicPartition(str(row["topic"]), int(row["partition"]))
                found.add((partition, int(row["offset"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"{path} is not a valid list of re-encoded batches: {error}") from error
    return found
