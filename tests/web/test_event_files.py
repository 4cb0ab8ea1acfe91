"""Event files are read from a position, while they grow and after they were replaced."""

import io
import json
from pathlib import Path

import pytest

from shoal.web.event_files import CHUNK_BYTES, TAIL, parse_event, read_chunk, read_lines, read_meta


def line(t: int, kind: str = "tick", **fields: object) -> str:
    return json.dumps({"kind": kind, "t": t, **fields}) + "\n"


def test_what_is_appended_is_read_from_the_position(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1) + line(2) + '{"kind": "ti')
    first = read_chunk(path)
    assert first is not None
    assert [event["t"] for event in first.events] == [1, 2]
    assert first.is_start
    path.write_text(line(1) + line(2) + line(3))
    second = read_chunk(path, first.position)
    assert second is not None
    assert [event["t"] for event in second.events] == [3]
    assert not second.is_start


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1) + line(2))
    first = read_chunk(path)
    assert first is not None
    thinned = tmp_path / "thinned"
    thinned.write_text(line(2) + line(3))
    thinned.replace(path)
    second = read_chunk(path, first.position)
    assert second is not None
    assert second.is_start
    assert [event["t"] for event in second.events] == [2, 3]


def test_lines_that_are_not_events_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("[]\nnot JSON\n" + line(1) + '{"kind": "tick"}\n' + "[" * 5000 + "\n")
    chunk = read_chunk(path)
    assert chunk is not None
    assert [event["t"] for event in chunk.events] == [1]
    assert not chunk.has_more


def test_a_long_file_is_read_in_chunks_and_its_tail_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    count = 3 * CHUNK_BYTES // 1000
    path.write_text("".join(line(t, text="x" * 960) for t in range(count)))
    times: list[int] = []
    position = ""
    while True:
        chunk = read_chunk(path, position)
        assert chunk is not None
        times += [event["t"] for event in chunk.events]
        position = chunk.position
        if not chunk.has_more:
            break
    assert times == list(range(count))
    tail = read_chunk(path, TAIL)
    assert tail is not None
    assert tail.events[-1]["t"] == count - 1
    assert 0 < len(tail.events) < count / 2


def test_positions_that_make_no_sense_start_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1))
    inode = path.stat().st_ino
    for position in ("x", "1-2", f"{inode}-999", f"{inode}--1", f"{inode}-{'9' * 40}", "-"):
        chunk = read_chunk(path, position)
        assert chunk is not None
        assert chunk.is_start, position
    assert read_chunk(tmp_path / "missing") is None


def test_only_files_of_this_version_have_a_meta_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1, "meta", version=1))
    assert read_meta(path) is not None
    for text in (line(1, "meta", version=2), line(1), "", '{"kind": "meta", "version": 1, "t": 1}'):
        path.write_text(text)
        assert read_meta(path) is None


@pytest.mark.parametrize(
    "event",
    [
        {"t": -1},
        {"t": 1 << 53},
        {"t": True},
        {"t": 1.5},
        {"counters": None},
        {"gauges": []},
        {"histograms": {"e2e": None}},
        {"histograms": {"e2e": {"buckets": {"x": 1}}}},
        {"histograms": {"e2e": {"buckets": {"1": None}}}},
        {"partitions": {}},
        {"processes": [{"pid": 1}]},
        {"kind": "state", "object": 7, "state": "dead"},
        {"kind": "state", "object": "broker 1"},
        {"kind": "state", "object": "broker 1", "state": "dead", "details": None},
        {"kind": "fault", "id": "1", "phase": "begin"},
        {"kind": "finding", "finding": None},
        {"kind": "log"},
        {"kind": "meta", "details": 1},
    ],
)
def test_an_event_with_other_types_is_left_out(event: dict[str, object]) -> None:
    """Pages and overviews read the fields of events without asking what they are."""
    assert parse_event(json.dumps({"kind": "tick", "t": 1, **event}).encode()) is None


def test_lines_longer_than_a_chunk_are_skipped_piece_by_piece() -> None:
    long = b"x" * (2 * CHUNK_BYTES + 10) + b"\n"
    file = io.BytesIO(b"a\n" + long + b"b\n" + long + b"not complete")
    assert list(read_lines(file)) == [(b"a\n", 2), (b"b\n", 4 + len(long))]


def test_a_position_of_any_length_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1))
    for position in ("9" * 5000 + "-1", "1-" + "9" * 5000, "²-1", "-", "tail-1"):
        chunk = read_chunk(path, position)
        assert chunk is not None
        assert chunk.is_start
