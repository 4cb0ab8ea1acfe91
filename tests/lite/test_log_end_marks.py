"""Up to where logs were written, as the next process finds it."""

import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.flushing import Flusher
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.log_end_file import FILE_NAME, LogEndFile
from support.lite.batches import append, batch_of, everything_in

KEY = (UUID(int=1), 0)


def read_known(folder: Path, *keys: tuple[UUID, int], is_trusted: bool = True) -> list[int | None]:
    """As a process finds them that comes after a kill: nobody has closed anything."""
    marks = LogEndFile(folder, is_trusted=is_trusted)
    found = [marks.of(key).known for key in keys]
    marks.close()
    return found


def test_marks_outlive_their_process(tmp_path: Path) -> None:
    marks = LogEndFile(tmp_path, is_trusted=True)
    keys = [(uuid4(), number) for number in range(300)]
    slots = [marks.of(key) for key in keys]
    assert all(slot.known is None for slot in slots)
    for number, slot in enumerate(slots):
        slot.set(number)
        slot.set(number + 7)
    assert read_known(tmp_path, *keys) == [number + 7 for number in range(300)]
    assert read_known(tmp_path, *keys, is_trusted=False) == [None] * 300
    marks.close()


def test_a_log_that_was_never_written_to_ends_at_its_begin(tmp_path: Path) -> None:
    LogEndFile(tmp_path, is_trusted=True).of(KEY)
    assert read_known(tmp_path, KEY) == [0]


def test_deleted_logs_leave_no_mark(tmp_path: Path) -> None:
    marks = LogEndFile(tmp_path, is_trusted=True)
    others = [(uuid4(), 0), (uuid4(), 1)]
    for key in (KEY, *others):
        marks.of(key).set(5)
    marks.drop(KEY)
    marks.keep({others[0]})
    assert read_known(tmp_path, KEY, *others) == [None, 5, None]


@pytest.mark.parametrize("content", [b"", b"short", bytes(4096), b"\xff" * 100])
def test_what_is_no_mark_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert read_known(tmp_path, KEY) == [None]


def write_log(folder: Path, count: int) -> Path:
    """A log of so many batches whose process was killed; returns its file."""
    mark = LogEndFile(folder, is_trusted=True).of(KEY)
    log = PartitionLog(
        folder / "t-0", LogSettings(), last_shutdown=LastShutdown.CLEANLY, end_mark=mark
    )
    for number in range(count):
        append(log, batch_of(b"%d" % number, timestamp_ms=1))
    return folder / "t-0" / f"{0:020}.log"


def open_log(folder: Path) -> PartitionLog:
    mark = LogEndFile(folder, is_trusted=True).of(KEY)
    return PartitionLog(
        folder / "t-0", LogSettings(), last_shutdown=LastShutdown.KILLED, end_mark=mark
    )


def test_a_torn_write_is_no_loss(tmp_path: Path) -> None:
    path = write_log(tmp_path, 5)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:30])
    log = open_log(tmp_path)
    assert not log.truncation_marker.is_set
    assert len(everything_in(log)) == 5
    log.close()


def test_batches_that_are_gone_are_a_loss_until_that_is_told(tmp_path: Path) -> None:
    path = write_log(tmp_path, 5)
    os.truncate(path, path.stat().st_size // 5 * 3)
    for _ in range(2):
        log = open_log(tmp_path)
        assert log.truncation_marker.is_set
        assert len(everything_in(log)) == 3
        log.close()
    log.truncation_marker.clear()
    again = open_log(tmp_path)
    assert not again.truncation_marker.is_set
    again.close()


def test_a_cut_that_a_leader_asked_for_is_no_loss(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    open_log(tmp_path).truncate_to(2)
    log = open_log(tmp_path)
    assert not log.truncation_marker.is_set
    log.truncate_fully(1)
    again = open_log(tmp_path)
    assert (again.truncation_marker.is_set, again.end_offset) == (False, 1)


def test_a_loss_is_remembered_although_who_found_it_was_killed_while_it_opened_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path, 100)
    open_log(tmp_path).delete_before(50)
    os.truncate(path, path.stat().st_size // 100 * 40)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Flusher, "on_truncated", killed)
        with pytest.raises(KeyboardInterrupt):
            open_log(tmp_path)
    assert open_log(tmp_path).truncation_marker.is_set
