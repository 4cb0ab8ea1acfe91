"""The positions of a mirror, in a file that the audit reads.

The file is one JSON object: `format`, `reader` ("mirror"), `final` (whether the mirror ended
normally), `at_us`, `counts`, `deliveries` (by topic: `delivery`, and `why` it is not the configured
one, or null), and `positions`: a row for each partition with `topic`, `partition` and `offset`, the
source offset below which everything is at the target or was dropped on purpose. The positions of a
file that is not final are valid too: the mirror copied at least that far.

The file is replaced atomically, so a reader never sees half of it. What has not changed is written
again after ten seconds only: with thousands of partitions writing costs more than an idle mirror.
"""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.mirror.status import MirrorStatus
from shoal.model.errors import LedgerError
from shoal.model.serialised import to_plain
from shoal.model.topics import TopicPartition

FORMAT: Final = 1
READER: Final = "mirror"
FILE_LIMIT_BYTES: Final = 64 << 20
UNCHANGED_EVERY_S: Final = 10.0


@dataclass(slots=True)
class PositionsFile:
    """The file of one mirror, which is written when something has changed."""

    path: Path
    _written: tuple[Any, ...] = ()
    _at_s: float = field(default=-UNCHANGED_EVERY_S)

    def write(self, status: MirrorStatus, *, final: bool, now_s: float) -> None:
        content = (status.positions, status.counts, dict(status.deliveries), final)
        if content != self._written or now_s - self._at_s >= UNCHANGED_EVERY_S:
            write_positions(self.path, status, final=final)
            self._written, self._at_s = content, now_s


def write_positions(path: Path, status: MirrorStatus, *, final: bool) -> None:
    body = {
        "format": FORMAT,
        "reader": READER,
        "final": final,
        "at_us": time.time_ns() // 1000,
        "counts": to_plain(status.counts),
        "deliveries": {
            name: {"delivery": one.delivery, "why": one.why}
            for name, one in status.deliveries.items()
        },
        "positions": [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in sorted(status.positions.items())
        ],
    }
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(body))  # many times faster than `json.dump`
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise LedgerError(
            f"cannot write the positions of the mirror to {path}: {error.strerror}",
            remedy="choose a file in an existing folder with free space",
        ) from error


def read_positions(path: Path) -> dict[TopicPartition, int]:
    """Read the positions in a file that `write_positions` wrote."""
    return _read(path)[0]


def read_rebatched(path: Path) -> int:
    """Read how many source batches the mirror has put into new ones since its last start."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[TopicPartition, int], int]:
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise LedgerError(f"{path} is too large to be a positions file")
        body: dict[str, Any] = json.loads(path.read_bytes())
        if body["format"] != FORMAT:
            raise LedgerError(f"{path} has format {body['format']!r}, not {FORMAT}")
        positions = {
            TopicPartition(str(row["topic"]), int(row["partition"])): int(row["offset"])
            for row in body["positions"]
        }
        return positions, int(body["counts"].get("rebatched", 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is not a valid positions file: {error}") from error
