"""What a follower of a run knows, as bytes: a later process continues from there.

A snapshot belongs to a position in the commit log. It has the answers of all tasks so far, and
names the row groups that they are of; rows are not in it, since segments never change.

Rules:
- The first line is JSON: what the snapshot is of. The second is a digest of all else; then follows
  Arrow.
- A snapshot fits only the format and version that wrote it, an undamaged content, and a commit log
  that begins with the same lines. `read_snapshot` refuses any other with the reason.
- Nothing in it is executed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from shoal import __version__
from shoal.audit.growth.increments import Increments
from shoal.audit.parts import ARROW_COLUMNS, TaskPart, from_table, to_record_batch
from shoal.audit.read.folder import RANGED, RowGroup
from shoal.audit.read.growing import GrowingState, LedgerBlock
from shoal.audit.read.read import KeptPiece, RowGroupPiece, Within
from shoal.model.errors import LedgerError
from shoal.model.run_folder import COMMITS_FILE, read_url

FORMAT: Final = 1

_KIND: Final = "state of shoal audit --follow"
_LONGEST_HEADER: Final = 1024 * 1024
_OF_FOOTERS: Final = -1  # the block of a row group that is a footer of a segment
_NAMES: Final = "names"
_SECTIONS: Final = ("cells", "blocks", "walks", "groups")


@dataclass
class CommitLogMark:
    """The first lines of a commit log, and their digest; `advance` reads only what is new."""

    run_dir: Path
    lines: int = 0
    size: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        return str(self._hash.hexdigest())

    def advance(self, lines: int) -> None:
        with (self.run_dir / COMMITS_FILE).open("rb") as file:
            file.seek(self.size)
            for _ in range(lines - self.lines):
                line = file.readline()
                self._hash.update(line)
                self.size += len(line)
        self.lines = lines


def make_snapshot(mark: CommitLogMark, state: GrowingState, known: Increments) -> bytes:
    """Return what is known about the ledgers up to the mark."""
    sections = [
        _write(_answers_table(list(known.of_cells.items()))),
        _write(_answers_table(list(known.of_blocks.items()))),
        _write(_answers_table([(b"", parts) for parts in known.walks])),
        _write(_groups_table(_root_of(mark.run_dir), state)),
    ]
    payload = b"".join(sections)
    header = {
        "kind": _KIND,
        "format": FORMAT,
        "shoal": __version__,
        "lines": mark.lines,
        "size": mark.size,
        "digest": mark.digest,
        "sections": [len(section) for section in sections],
        "cuts": known.cuts,
        "rows": dict(state.rows),
        "positions": dict(state.positions),
        _NAMES: state.names,
    }
    first = json.dumps(header).encode() + b"\n"
    return first + _digest(first, payload) + payload


def _digest(first: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(first + payload).hexdigest().encode() + b"\n"


def read_snapshot(file: BinaryIO, run_dir: Path) -> tuple[GrowingState, Increments]:
    """Return what a snapshot of this run holds; one that does not fit is a `LedgerError`."""
    first = file.readline(_LONGEST_HEADER)
    header = _read_header(first)
    digest, payload = file.readline(_LONGEST_HEADER), file.read()
    if digest != _digest(first, payload):
        raise LedgerError("it is damaged: its content does not have the digest of its second line")
    _require_same_log(header, run_dir)
    try:
        tables = {
            name: pa.ipc.open_stream(section).read_all()
            for name, section in _cut(payload, header["sections"])
        }
        known = Increments(
            cuts=header["cuts"],
            of_cells=dict(_read_answers(tables["cells"])),
            of_blocks=dict(_read_answers(tables["blocks"])),
            walks=[parts for _, parts in _read_answers(tables["walks"])],
        )
        state = GrowingState(
            lines=header["lines"],
            rows=Counter(header["rows"]),
            positions=Counter(header["positions"]),
            names=header[_NAMES],
        )
        _read_groups(tables["groups"], _root_of(run_dir), state)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise LedgerError(f"its content is not that of format {FORMAT}: {error!r:.200}") from error
    return state, known


def _read_header(line: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != _KIND:
        raise LedgerError("it is damaged: its first line does not say what it is")
    found = (header.get("format"), header.get("shoal"))
    if found != (FORMAT, __version__):
        raise LedgerError(
            f"it has format {found[0]} of Shoal {found[1]}, and this is format {FORMAT} of Shoal"
            f" {__version__}"
        )
    return header


def _require_same_log(header: Mapping[str, Any], run_dir: Path) -> None:
    """Refuse a snapshot unless the commit log begins with the lines that it was made of."""
    digest, left = hashlib.sha256(), int(header.get("size", 0))
    with (run_dir / COMMITS_FILE).open("rb") as log:
        while left and (chunk := log.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    if left or digest.hexdigest() != header.get("digest"):
        raise LedgerError(f"{COMMITS_FILE} does not begin with the lines that it was made of")


def _cut(payload: bytes, lengths: Sequence[int]) -> Iterable[tuple[str, bytes]]:
    begin = 0
    for name, length in zip(_SECTIONS, lengths, strict=True):
        yield name, payload[begin : begin + length]
        begin += length


def _write(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


# ---------------------------------------------------------------- answers


def _answers_table(answers: Sequence[tuple[bytes, list[TaskPart]]]) -> pa.Table:
    """Return a row for each part; an answer without parts has one row without a kind."""
    batches = [to_record_batch(n, parts) for n, (_, parts) in enumerate(answers) if parts]
    table = pa.Table.from_batches(batches, _ANSWER_SCHEMA)
    missing = [number for number, (_, parts) in enumerate(answers) if not parts]
    empty = {name: pa.nulls(len(missing), _ANSWER_SCHEMA.field(name).type) for name in _PART}
    table = pa.concat_tables(
        [table, pa.table({"task": pa.array(missing, pa.int32()), **empty}, _ANSWER_SCHEMA)]
    )
    names = [answers[number][0] for number in table.column("task").to_pylist()]
    return table.append_column("name", pa.array(names, pa.binary()))


_PART: Final = ARROW_COLUMNS[1:]
_ANSWER_SCHEMA: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("kind", pa.string()),
        ("label", pa.string()),
        ("values", pa.list_(pa.int64())),
    ]
)


def _read_answers(table: pa.Table) -> Iterable[tuple[bytes, list[TaskPart]]]:
    tasks, names = (table.column(name).to_pylist() for name in ("task", "name"))
    parts = from_table(table.select(list(ARROW_COLUMNS)).filter(table.column("kind").is_valid()))
    by_task = dict(zip(tasks, names, strict=True))
    return [(by_task[number], parts.get(number, [])) for number in sorted(by_task)]


# ---------------------------------------------------------------- row groups


def _groups_table(root: str, state: GrowingState) -> pa.Table:
    """Return a row for each piece in memory, or for each footer, in their order."""
    rows: list[dict[str, Any]] = []
    for (table, block), held in state.blocks.items():
        for piece, group in zip(held.pieces, held.groups, strict=True):
            rows.append(_group_row(root, (table, block), group, piece.sources))
            if piece.within is not None:
                rows[-1]["low"], rows[-1]["high"] = piece.within.ranges[0]
            rows[-1]["path"] = piece.path
    for path, groups in state.footers.items():
        for group in groups:
            assert isinstance(group.piece, RowGroupPiece)  # noqa: S101 - of `read_footer`
            rows.append(_group_row(root, ("", _OF_FOOTERS), group, [group.piece]))
            rows[-1]["path"] = path.removeprefix(root)
    return pa.Table.from_pylist(rows, _GROUP_SCHEMA)


def _group_row(
    root: str, block: tuple[str, int], group: RowGroup, sources: Iterable[RowGroupPiece]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "table": block[0],
        "block": block[1],
        "rows": group.rows,
        "group": group.group,
        "buckets": group.buckets,
    }
    row["sources"] = [
        {"path": each.path.removeprefix(root), "number": each.number, "position": at}
        for each in sources
        for at in [each.position]
    ]
    return row | {f"{name}_range": bounds for name, bounds in group.ranges.items()}


_PAIR: Final = pa.list_(pa.int64())
_SOURCE: Final = pa.struct(
    [("path", pa.string()), ("number", pa.int32()), ("position", pa.int64())]
)
_GROUP_SCHEMA: Final = pa.schema(
    [
        ("table", pa.string()),
        ("block", pa.int64()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("group", pa.string()),
        ("buckets", _PAIR),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("sources", pa.list_(_SOURCE)),
        *((f"{name}_range", _PAIR) for name in RANGED),
    ]
)


def _root_of(run_dir: Path) -> str:
    """Return what the places of all segments of a run begin with."""
    return f"{read_url(run_dir) or run_dir.resolve()}/"


def _read_groups(table: pa.Table, root: str, state: GrowingState) -> None:
    for row in table.to_pylist():
        sources = tuple(
            RowGroupPiece(root + each["path"], each["number"], each["position"])
            for each in row["sources"]
        )
        ranges = {name: (*row[f"{name}_range"],) for name in RANGED if row[f"{name}_range"]}
        shared = (row["rows"], ranges, row["group"], tuple(row["buckets"]))
        if row["block"] == _OF_FOOTERS:
            path = root + row["path"]
            state.footers.setdefault(path, []).append(RowGroup(sources[0], *shared))
            continue
        within = None if row["low"] is None else Within("sequence", [(row["low"], row["high"])])
        piece = KeptPiece(row["path"], row["table"], sources, within)
        block = state.blocks.setdefault((row["table"], row["block"]), LedgerBlock())
        block.pieces.append(piece)
        block.groups.append(RowGroup(piece, *shared))
