"""A disk that fails: what is not written is not acknowledged, and the log says it is offline."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.lite.base.codes import Code
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.disk import DiskFault, set_fault
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.model.errors import ConfigError
from support.lite.batches import append, batch_of, everything_in


@pytest.fixture(autouse=True)
def without_fault() -> Iterator[None]:
    yield
    set_fault(None)


@pytest.mark.parametrize(
    ("fault", "settings", "reason"),
    [
        (DiskFault(writes="EIO"), LogSettings(), "Input/output error"),
        (DiskFault(writes="ENOSPC"), LogSettings(), "No space left"),
        (DiskFault(room_bytes=40), LogSettings(), "No space left"),
        (DiskFault(syncs="EIO"), LogSettings(flush_messages=1), "Input/output error"),
        (DiskFault(writes="EIO"), LogSettings(segment_bytes=100), "Input/output error"),
    ],
)
def test_a_failed_write_takes_the_log_offline_until_it_is_opened_again(
    tmp_path: Path, fault: DiskFault, settings: LogSettings, reason: str
) -> None:
    log = PartitionLog(tmp_path / "t-0", settings, last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"a"))
    set_fault(fault)
    with pytest.raises(LogOffline, match=f"t-0 is offline.*{reason}") as raised:
        append(log, batch_of(b"b"))
    assert raised.value.code == Code.KAFKA_STORAGE_ERROR
    assert log.end_offset == 1
    set_fault(None)
    with pytest.raises(LogOffline):
        append(log, batch_of(b"b"))
    log.close()
    again = PartitionLog(tmp_path / "t-0", settings, last_shutdown=LastShutdown.KILLED)
    assert everything_in(again)[:1] == [b"a"]
    append(again, batch_of(b"c"))
    assert everything_in(again)[-1] == b"c"
    again.close()


def test_what_was_written_before_the_disk_was_full_is_cut_off(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    first = batch_of(b"a")
    append(log, first)
    set_fault(DiskFault(room_bytes=len(first) - 1))
    with pytest.raises(LogOffline):
        append(log, batch_of(b"b"))
    [segment] = tmp_path.glob("*.log")
    assert segment.read_bytes() == bytes(first)
    log.close()


def test_a_slow_disk_is_slow_and_right(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, LogSettings(), last_shutdown=LastShutdown.CLEANLY)
    set_fault(DiskFault(delay_ms=1))
    append(log, batch_of(b"a"))
    assert everything_in(log) == [b"a"]
    log.close()


def test_only_errors_that_a_system_knows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="EWRONG"):
        DiskFault(writes="EWRONG")
    for delay_ms in (-1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="disk delay"):
            DiskFault(delay_ms=delay_ms)
    with pytest.raises(ConfigError, match="room_bytes"):
        DiskFault(room_bytes=-1)
