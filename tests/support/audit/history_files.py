"""Small histories for tests: lines with sensible defaults, written and judged."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import Sizes, audit
from shoal.audit.history.store import import_history
from shoal.audit.history.verdict import judge_history, to_json
from shoal.model.result import Result

Line = dict[str, Any]


def run(**fields: Any) -> Line:
    return {"kind": "run", **fields}


def send(seq: int, outcome: str = "ok", *, offset: int | None = -1, **fields: Any) -> Line:
    """An attempt of p1 to t-0; where nothing else is said, acknowledged at offset `seq`."""
    if offset == -1:
        offset = seq if outcome == "ok" else None
    common = {"producer": "p1", "topic": "t", "partition": 0, "seq": seq, "outcome": outcome}
    return {"kind": "send", **common, "offset": offset, "sent_us": 1000 * seq, **fields}


def log(cluster: str, *places: tuple[int, int], **fields: Any) -> list[Line]:
    """Messages of p1 in t-0: (sequence, offset) pairs."""
    common = {"kind": "log", "cluster": cluster, "topic": "t", "partition": 0, "producer": "p1"}
    return [{**common, "seq": seq, "offset": offset, **fields} for seq, offset in places]


def scan(cluster: str, start: int, end: int, **fields: Any) -> Line:
    place = {"topic": "t", "partition": 0, "start": start, "end": end}
    return {"kind": "scan", "cluster": cluster, **place, **fields}


def receive(*sequences: int, offset: int | None = None, **fields: Any) -> list[Line]:
    """Deliveries of messages of p1 from t-0, at offsets equal to sequences if none is given."""
    common = {"consumer": "c1", "assignment": 1, "topic": "t", "partition": 0, "producer": "p1"}
    return [
        {
            "kind": "receive",
            **common,
            "seq": seq,
            "offset": seq if offset is None else offset,
            "received_us": 1000 * seq + 5000,
            **fields,
        }
        for seq in sequences
    ]


def position(reader: str, offset: int) -> Line:
    return {"kind": "position", "reader": reader, "topic": "t", "partition": 0, "offset": offset}


def assign(offset: int, **fields: Any) -> Line:
    common = {"consumer": "c1", "assignment": 1, "topic": "t", "partition": 0, "offset": offset}
    return {"kind": "assign", **common, **fields}


DRAINED: Line = {"kind": "end", "drained": True}


def flat(*lines: Line | Iterable[Line]) -> list[Line]:
    return [one for line in lines for one in ([line] if isinstance(line, dict) else line)]


def write(folder: Path, lines: Iterable[Line]) -> Path:
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def judge_folder(folder: Path, *lines: Line | Iterable[Line]) -> Line:
    """What `--output json` prints of a history."""
    path = write(folder, flat(*lines))
    return to_json(str(path), judge_history(path))


def counts(common: Line) -> dict[str, int]:
    return {name: found["count"] for name, found in common["findings"].items()}


def cut_up(
    folder: Path, lines: Iterable[Line], sizes: Sizes, *, block_bytes: int | None = None
) -> Result:
    """The same, judged in pieces of the given sizes; read in blocks, if their size is given."""
    with pytest.MonkeyPatch.context() as patch:
        if block_bytes is not None:
            read_in_blocks(patch, block_bytes)
        return audit(import_history(write(folder, lines), folder), sizes=sizes)


def read_in_blocks(patch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Read short histories as long ones are read."""
    patch.setattr("shoal.audit.history.store.SHORT_BYTES", 0)
    patch.setattr("shoal.audit.history.blocks.BLOCK_BYTES", block_bytes)
