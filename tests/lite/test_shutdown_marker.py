"""How the last process ended, as the next one reads it; also when that ended too early."""

import json
from pathlib import Path

import pytest

from shoal.lite.storage.recovery import shutdown_marker
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.shutdown_marker import MARKER_NAME, ShutdownMarker


def begin_marker(folder: Path, incarnation: str = "process") -> tuple[ShutdownMarker, LastShutdown]:
    marker = ShutdownMarker(folder)
    return marker, marker.begin(incarnation)


def test_a_new_folder_keeps_its_id(tmp_path: Path) -> None:
    first, ended = begin_marker(tmp_path)
    assert ended is LastShutdown.UNKNOWN
    second, ended = begin_marker(tmp_path)
    assert (second.directory_id, ended) == (first.directory_id, LastShutdown.UNKNOWN)
    (tmp_path / MARKER_NAME).unlink()
    assert begin_marker(tmp_path)[0].directory_id != first.directory_id


def test_a_killed_process_and_one_that_ended(tmp_path: Path) -> None:
    first, _ = begin_marker(tmp_path)
    first.run("first")
    second, ended = begin_marker(tmp_path)
    assert (ended, second.clean_incarnation) == (LastShutdown.KILLED, None)
    second.run("second")
    second.end_cleanly()
    third, ended = begin_marker(tmp_path)
    assert (ended, third.clean_incarnation) == (LastShutdown.CLEANLY, "second")


def test_who_is_killed_before_its_logs_are_open_leaves_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_marker(tmp_path)[0].run("before the power loss")
    monkeypatch.setattr(shutdown_marker, "current_boot_id", lambda: "another boot")
    for _ in range(3):
        # Each is killed while it looks through its logs.
        assert begin_marker(tmp_path)[1] is LastShutdown.UNKNOWN
    marker, ended = begin_marker(tmp_path)
    assert ended is LastShutdown.UNKNOWN
    marker.run("looked through")
    assert begin_marker(tmp_path)[1] is LastShutdown.KILLED


def test_who_ended_before_its_logs_were_open_has_not_ended_cleanly(tmp_path: Path) -> None:
    begin_marker(tmp_path)[0].run("killed")
    marker, _ = begin_marker(tmp_path)
    marker.end_cleanly()
    assert begin_marker(tmp_path)[1] is LastShutdown.KILLED


def test_a_clean_end_counts_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = begin_marker(tmp_path)
    first.run("first")
    first.end_cleanly()
    monkeypatch.setattr(shutdown_marker, "current_boot_id", lambda: "another boot")
    for _ in range(2):
        # The second time, because the first was killed before it wrote anything.
        marker, ended = begin_marker(tmp_path)
        assert (ended, marker.clean_incarnation) == (LastShutdown.CLEANLY, "first")


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_folder_names_the_processes_that_the_cluster_may_know(
    tmp_path: Path, is_clean: bool
) -> None:
    marker, _ = begin_marker(tmp_path, "ran")
    marker.run("ran")
    if is_clean:
        marker.end_cleanly()
    assert begin_marker(tmp_path, "tried")[0].earlier == ("ran",)
    assert begin_marker(tmp_path, "tried again")[0].earlier == ("ran", "tried")
    last, _ = begin_marker(tmp_path, "last")
    assert last.earlier == ("ran", "tried", "tried again")
    last.run("last")
    assert begin_marker(tmp_path)[0].earlier == ("last",)


def test_a_folder_in_which_no_process_ever_runs_stays_small(tmp_path: Path) -> None:
    for number in range(120):
        marker, _ = begin_marker(tmp_path, str(number))
    assert marker.earlier[-1] == "118"
    assert len(marker.earlier) == 101


def test_a_folder_of_an_earlier_version_names_its_last_process(tmp_path: Path) -> None:
    begin_marker(tmp_path)[0].run("ran")
    path = tmp_path / MARKER_NAME
    content = json.loads(path.read_bytes())
    del content["begun"]
    path.write_text(json.dumps(content))
    marker, ended = begin_marker(tmp_path)
    assert (marker.earlier, ended) == (("ran",), LastShutdown.KILLED)


def test_who_does_not_vouch_for_its_logs_leaves_them_to_be_looked_through(tmp_path: Path) -> None:
    first, _ = begin_marker(tmp_path)
    first.run("process", has_all_logs=False)
    assert begin_marker(tmp_path)[1] is LastShutdown.UNKNOWN


def test_rubbish_is_trusted_in_nothing(tmp_path: Path) -> None:
    sound = {"state": "ended", "boot_id": "b", "incarnation": "i", "directory_id": "f" * 32}
    odd = [{"state": "ended"}, sound | {"directory_id": "f"}, sound | {"begun": 1}]
    for rubbish in (b"", b"{}", b"[1]", *(json.dumps(one).encode() for one in odd)):
        (tmp_path / MARKER_NAME).write_bytes(rubbish)
        assert begin_marker(tmp_path)[1] is LastShutdown.UNKNOWN
