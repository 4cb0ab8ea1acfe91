"""A follower that continues from a snapshot finds what one finds that was never interrupted."""

import hashlib
import io
import json
from pathlib import Path
from random import Random

import pytest

from shoal.audit.follow import READ_TABLES, RunFollower, find_certain
from shoal.audit.growth import snapshot
from shoal.audit.growth.increments import Increments
from shoal.audit.growth.snapshot import CommitLogMark, make_snapshot, read_snapshot
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.growing import GrowingLedger
from shoal.model.errors import LedgerError
from shoal.model.run_folder import COMMITS_FILE
from support.audit.ledgers import write_commits
from support.audit.steps import in_steps, make_troubled_run


def begin(run: Path, stored: bytes | None = None) -> tuple[GrowingLedger, RunFollower]:
    """A follower that is started: from nothing, or from a snapshot."""
    if stored is None:
        return GrowingLedger(run, READ_TABLES), RunFollower(increments=Increments(rows_per_cell=40))
    state, known = read_snapshot(io.BytesIO(stored), run)
    known.rows_per_cell = 40
    return GrowingLedger(run, READ_TABLES, state), RunFollower(increments=known)


def store(run: Path, growing: GrowingLedger, follower: RunFollower) -> bytes:
    mark = CommitLogMark(run)
    mark.advance(growing.state.lines)
    return make_snapshot(mark, growing.state, follower.increments)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("of", ["rows", "segments"])
def test_a_follower_that_is_killed_at_random_steps_finds_the_same(
    seed: int, of: str, tmp_path: Path
) -> None:
    random = Random(seed)
    run = make_troubled_run(seed).write(tmp_path / "run", rows_per_segment=9)
    growing, follower = begin(run)
    stored: bytes | None = None
    for number, lines in enumerate(in_steps(run, random)):
        write_commits(run, lines)
        if random.random() < 0.5:  # killed; its last snapshot may be some steps old
            growing, follower = begin(run, stored)
        ledger = growing.read(follower.increments.cuts) if of == "rows" else growing.open_segments()
        found = follower.find(ledger, growing.new_receipts)
        assert found == find_certain(open_ledger([run])), number
        if random.random() < 0.7:
            stored = store(run, growing, follower)


@pytest.mark.parametrize("of", ["rows", "segments"])
def test_what_is_known_is_not_judged_again_and_its_rows_are_not_read(
    of: str, tmp_path: Path
) -> None:
    run = make_troubled_run(3).write(tmp_path / "run", rows_per_segment=9)
    growing, follower = begin(run)

    def look() -> object:
        ledger = growing.read(follower.increments.cuts) if of == "rows" else growing.open_segments()
        return follower.find(ledger, growing.new_receipts)

    look()
    expected = look()
    stored = store(run, growing, follower)
    growing, follower = begin(run, stored)
    assert look() == expected
    assert follower.increments.judged == 0
    pieces = [piece for block in growing.state.blocks.values() for piece in block.pieces]
    big = [piece for piece in pieces if piece.table in ("attempts", "receipts")]
    assert bool(big) is (of == "rows")
    assert all(piece.rows is None for piece in big)


def test_snapshots_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_troubled_run(5).write(tmp_path / "run", rows_per_segment=9)
    growing, follower = begin(run)
    follower.find(growing.read(follower.increments.cuts), growing.new_receipts)
    stored = store(run, growing, follower)
    begin(run, stored)
    first, digest, payload = stored.split(b"\n", 2)
    header = json.loads(first)
    for wrong in (b"", b"{}\n", payload, first, first + b"\n" + digest + b"\n"):
        with pytest.raises(LedgerError, match="damaged"):
            begin(run, wrong)

    def change(**entries: object) -> bytes:
        line = json.dumps({**header, **entries}).encode() + b"\n"
        return line + hashlib.sha256(line + payload).hexdigest().encode() + b"\n" + payload

    with pytest.raises(LedgerError, match="format 7 of Shoal"):
        begin(run, change(format=7))
    with pytest.raises(LedgerError, match="is not that of format 1"):
        begin(run, change(sections=[1, 2]))
    log = (run / COMMITS_FILE).read_bytes()
    for other in (log[:-2] + b" }", log[: len(log) // 2], b""):
        (run / COMMITS_FILE).write_bytes(other)
        with pytest.raises(LedgerError, match="does not begin with the lines"):
            begin(run, stored)
    lines = log.decode().splitlines()
    write_commits(run, [*lines, lines[-1]])
    begin(run, stored)
    monkeypatch.setattr(snapshot, "__version__", "0.0.1")
    with pytest.raises(LedgerError, match=r"of Shoal 0\.0\.1$"):
        begin(run, stored)


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_snapshot_is_refused(seed: int, tmp_path: Path) -> None:
    run = make_troubled_run(5).write(tmp_path / "run", rows_per_segment=9)
    growing, follower = begin(run)
    follower.find(growing.read(follower.increments.cuts), growing.new_receipts)
    stored = bytearray(store(run, growing, follower))
    random = Random(seed)
    place = random.randrange(len(stored) if seed % 2 else stored.index(b"\n"))
    stored[place] ^= 1 << random.randrange(8)
    with pytest.raises(LedgerError):
        begin(run, bytes(stored))
