"""How far the mirror came, in a file that the audit reads.

The file is one JSON object: `format`, `reader` ("mirror"), `final` (whether the mirror ended in
order), `at_us`, `counts`, `deliveries` (by topic: `delivery`, and `why` it is not the one that
was asked for, or null), and `positions`: a row for each partition with `topic`, `partition` and
`offset`, the source offset below which everything is at the target or was dropped on purpose. A
file that is not final is true as well: the mirror came at least that far.

It is replaced in one step, so a reader never sees half of it.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from shoal.mirror.status import MirrorStatus
from shoal.model.errors import LedgerError
from shoal.model.serialised import to_plain
from shoal.model.topics import TopicPartition

FORMAT: Final = 1
READER: Final = "mirror"
FILE_LIMIT_BYTES: Final = 64 << 20


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
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise LedgerError(
            f"the mirror's positions cannot be written to {path}: {error.strerror}",
            remedy="name a file in a folder that exists and has room",
        ) from error


def read_positions(path: Path) -> dict[TopicPartition, int]:
    """The positions of a file that `write_positions` made."""
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise LedgerError(f"{path} is too large for a file of positions")
        body: dict[str, Any] = json.loads(path.read_bytes())
        if body["format"] != FORMAT:
            raise LedgerError(f"{path} is of format {body['format']!r}, not {FORMAT}")
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): int(row["offset"])
            for row in body["positions"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no file of positions: {error}") from error
