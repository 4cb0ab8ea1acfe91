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
from collections.abc import Mapping
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


class PositionsFile:
    """The file of one mirror, which is written when something has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: Mapping[TopicPartition, int] = {}
        self._rows: dict[TopicPartition, str] = {}  # of `_positions`, in order
        self._rest: tuple[object, ...] = ()  # what else was written
        self._at_s = -UNCHANGED_EVERY_S

    def write(self, status: MirrorStatus, *, final: bool, now_s: float) -> None:
        """Write the file, unless what it has is as new."""
        rest = (status.counts, dict(status.deliveries), final)
        is_old = now_s - self._at_s >= UNCHANGED_EVERY_S
        if is_old or rest != self._rest or status.positions != self._positions:
            self._keep_rows(status.positions)
            self._replace(_head(status, final=final))
            self._rest, self._at_s = rest, now_s

    def _keep_rows(self, positions: Mapping[TopicPartition, int]) -> None:
        """Make the rows of partitions that have moved."""
        if positions.keys() != self._positions.keys():
            self._rows = {tp: _row(tp, positions[tp]) for tp in sorted(positions)}
        else:
            moved = positions.items() - self._positions.items()
            self._rows.update({tp: _row(tp, offset) for tp, offset in moved})
        self._positions = positions

    def _replace(self, head: str) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(f'{head[:-1]}, "positions": [{", ".join(self._rows.values())}]}}')
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            raise LedgerError(
                f"cannot write the positions of the mirror to {self._path}: {error.strerror}",
                remedy="choose a file in an existing folder with free space",
            ) from error


def _head(status: MirrorStatus, *, final: bool) -> str:
    """The object without the positions."""
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
    }
    return json.dumps(body)


def _row(tp: TopicPartition, offset: int) -> str:
    return json.dumps({"topic": tp.topic, "partition": tp.partition, "offset": offset})


def read_positions(path: Path) -> dict[TopicPartition, int]:
    """Read the positions in a file that `PositionsFile` wrote."""
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
