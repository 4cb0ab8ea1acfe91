"""Mirrors as process trees: measured, killed, paused; and those that others wrote."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shoal.model.errors import SystemFailure
from shoal.systems.mirror_kinds import MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror, ProcessMirror

# Burns CPU in a child of its own, as a tree does, and says so.
BUSY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("replicating", flush=True)
child.wait()
"""
PATIENCE_S = 60.0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def tree(tmp_path: Path, text: str = BUSY) -> ProcessMirror:
    command = [sys.executable, "-c", text]
    return ProcessMirror("test", lambda: command, folder=tmp_path, ready="replicating")


def cpu_s(mirror: Mirror) -> float:
    usage = mirror.usage()
    assert usage is not None
    return usage.cpu_s


def test_a_tree_is_measured_over_its_starts(tmp_path: Path) -> None:
    mirror = tree(tmp_path)
    mirror.start()
    try:
        mirror.wait_until_ready()
        eventually(lambda: len(mirror.pids()) == 2 and cpu_s(mirror) > 0.3)
        first = mirror.pids()
        mirror.kill()
        eventually(lambda: all(map(is_gone, first)))
        used_s = cpu_s(mirror)
        mirror.start()
        eventually(lambda: cpu_s(mirror) > used_s + 0.3)
    finally:
        mirror.close()
    usage = mirror.usage()
    assert usage is not None
    assert usage.starts == 2
    assert usage.peak_memory_bytes > 10_000_000


def test_a_paused_tree_stands_still(tmp_path: Path) -> None:
    mirror = tree(tmp_path)
    mirror.start()
    try:
        eventually(lambda: len(mirror.pids()) == 2)
        mirror.pause()
        states = [psutil.Process(pid) for pid in mirror.pids()]
        eventually(lambda: all(p.status() == psutil.STATUS_STOPPED for p in states))
        mirror.resume()
        eventually(lambda: not any(p.status() == psutil.STATUS_STOPPED for p in states))
        assert mirror.is_running()
    finally:
        mirror.close()


def test_one_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    mirror = tree(tmp_path, "raise SystemExit('I have had enough')")
    mirror.start()
    try:
        eventually(lambda: not mirror.is_running())
        with pytest.raises(SystemFailure, match="I have had enough"):
            mirror.check()
    finally:
        mirror.close()


def route(tmp_path: Path) -> MirrorRoute:
    servers = {"bootstrap.servers": "source:1"}, {"bootstrap.servers": "target:2"}
    return MirrorRoute(*servers, topics=("a", "b"), folder=tmp_path)


def foreign(tmp_path: Path, start: str | None = None, stop: str | None = None) -> Mirror:
    mirror = make_mirror("external", route(tmp_path), MirrorOptions(start=start, stop=stop))
    assert mirror is not None
    return mirror


def python(text: str) -> str:
    return shlex.join([sys.executable, "-c", text])


def test_a_mirror_of_others_may_be_left_alone(tmp_path: Path) -> None:
    mirror = foreign(tmp_path)
    mirror.start()
    mirror.check()
    assert mirror.is_running()
    assert mirror.usage() is None
    with pytest.raises(SystemFailure, match="does not know its processes"):
        mirror.kill()
    mirror.stop()


def test_a_start_command_that_stays_is_measured_and_stopped(tmp_path: Path) -> None:
    dumped = tmp_path / "environment.json"
    text = f"import json, os, time; json.dump(dict(os.environ), open({str(dumped)!r}, 'w')); "
    mirror = foreign(tmp_path, start=python(text + "time.sleep(600)"))
    mirror.start()
    try:
        eventually(lambda: dumped.exists() and dumped.read_text().endswith("}"))
        mirror.check()
        environment = json.loads(dumped.read_text())
        assert environment["SHOAL_SOURCE"] == "source:1"
        assert environment["SHOAL_TARGET"] == "target:2"
        assert environment["SHOAL_TOPICS"] == "a,b"
        assert mirror.usage() is not None
    finally:
        mirror.stop()
    assert not mirror.pids()


def test_a_mirror_in_the_background_is_ended_by_its_stop_command(tmp_path: Path) -> None:
    mark = tmp_path / "stopped"
    stop = python(f"open({str(mark)!r}, 'w')")
    mirror = foreign(tmp_path, start="true", stop=stop)
    mirror.start()
    eventually(lambda: not mirror.pids())
    mirror.check()
    assert mirror.is_running()
    mirror.stop()
    assert mark.exists()


def test_a_stop_command_that_fails_is_told(tmp_path: Path) -> None:
    mirror = foreign(tmp_path, start="true", stop=python("raise SystemExit('no')"))
    mirror.start()
    with pytest.raises(SystemFailure, match="no"):
        mirror.stop()
