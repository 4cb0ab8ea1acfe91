"""What a mirror writes to its event stream."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.intake import Counts
from shoal.mirror.events import MirrorEvents
from shoal.mirror.routes import Route
from shoal.mirror.status import MirrorStatus, PartitionStatus
from shoal.model.errors import SystemFailure
from shoal.model.events import End, Event, LogLine, Meta, State, Tick
from shoal.model.topics import TopicPartition
from shoal.telemetry.discovery import find_sources
from shoal.telemetry.events import EventReader
from support.mirror.copies import fill, make_topic

PATIENCE_S = 120.0


def partition(number: int, *, lag: int = 0, **more: Any) -> PartitionStatus:
    place = TopicPartition("t", number)
    return PartitionStatus(Route(place, place), 10, 10 + lag, lag, lag * 100, lag * 1.0, **more)


def status_of(*partitions: PartitionStatus, **more: Any) -> MirrorStatus:
    lag = sum(each.lag for each in partitions)
    return MirrorStatus(Counts(records=5), {}, lag, (), partitions=partitions, **more)


def write(folder: Path, *statuses: MirrorStatus) -> list[Event]:
    servers = {"bootstrap.servers": "h:1"}
    config = MirrorConfig(servers, servers | {"bootstrap.servers": "h:2"}, ("t",), name="m")
    events = MirrorEvents(config, folder)
    for status in statuses:
        events.on_status(status)
    events.close("finished")
    reader = EventReader(folder)
    found = reader.read().events
    reader.close()
    return found


def test_a_tick_names_what_changed_with_the_worst_first(tmp_path: Path) -> None:
    first = [
        partition(0),
        partition(1, lag=7),
        partition(2, lag=9),
        partition(3, waiting="no leader"),
    ]
    later = [*first[:3], partition(3, parked="too large", remedy="raise it")]
    aged = [replace(first[1], lag_s=99.0), *later[2:]]
    events = write(tmp_path, status_of(*first), status_of(*later), status_of(*aged))
    ticks = [event for event in events if isinstance(event, Tick)]
    named = [[each["partition"] for each in tick.partitions] for tick in ticks]
    assert named == [["t-3", "t-2", "t-1", "t-0"], ["t-3"], []]
    assert ticks[0].counters == {"records": 5, "bytes": 0, "batches": 0}
    assert ticks[0].gauges == {
        "lag": 16,
        "lag_s": 9,
        "lag_bytes": 1600,
        "partitions": 4,
        "waiting": 1,
        "parked": 0,
        "paused": 0,
    }
    assert [process.pid for process in ticks[0].processes] == [os.getpid()]


def test_states_and_remarks_are_written_once(tmp_path: Path) -> None:
    good, waits = partition(0), partition(0, waiting="no leader")
    parked = partition(0, parked="too large", remedy="raise it")
    refused = (SystemFailure("topic x is not copied"),)
    events = write(
        tmp_path,
        status_of(good),
        status_of(waits, notices=("repaired",)),
        status_of(waits, notices=("repaired",), refused=refused),
        status_of(good, paused=True),
        status_of(parked, refused=refused),
    )
    states = [(each.object, each.state, each.reason) for each in events if isinstance(each, State)]
    assert states == [
        ("mirror", "running", ""),
        ("partition t-0", "waiting", "no leader"),
        ("mirror", "paused", ""),
        ("partition t-0", "copying", ""),
        ("mirror", "running", ""),
        ("partition t-0", "parked", "too large"),
    ]
    logs = [(each.level, each.text) for each in events if isinstance(each, LogLine)]
    assert logs == [("warning", "repaired"), ("error", "topic x is not copied")]


def test_an_unknown_lag_is_left_out(tmp_path: Path) -> None:
    unknown = replace(partition(0), lag=-1, lag_bytes=-1, lag_s=-1.0)
    tick = next(each for each in write(tmp_path, status_of(unknown)) if isinstance(each, Tick))
    assert "lag" not in tick.gauges
    assert "lag_s" not in tick.gauges


class Follower:
    """Reads a growing stream until something is in it."""

    def __init__(self, folder: Path) -> None:
        self._reader = EventReader(folder)
        self.events: list[Event] = []

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.events[-5:]
            found = self._reader.read()
            assert not found.is_restarted
            self.events += found.events
            if not found.events:
                time.sleep(0.02)

    def positions(self) -> set[int]:
        """The last positions of all partitions."""
        ticks = [event for event in self.events if isinstance(event, Tick)]
        last = {each["partition"]: each["position"] for tick in ticks for each in tick.partitions}
        return set(last.values())

    def close(self) -> None:
        self._reader.close()


def test_a_mirror_that_is_killed_and_started_again_continues_its_stream(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    asyncio.run(make_topic(source.bootstrap, "events", 2))
    fill(source.bootstrap, "events", range(100), partitions=2)
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--name", "followed"]
    command += ["--source-bootstrap-server", source.bootstrap, "--topics", "events"]
    command += ["--target-bootstrap-server", target.bootstrap]
    follower = Follower(tmp_path / "shoal" / "mirrors" / "followed")
    with subprocess.Popen(command, env=environment) as first:
        follower.wait(lambda: follower.positions() == {50})
        first.send_signal(signal.SIGKILL)
    fill(source.bootstrap, "events", range(100, 160), partitions=2)
    with subprocess.Popen(command, env=environment) as second:
        follower.wait(lambda: follower.positions() == {80})
        second.send_signal(signal.SIGTERM)
        follower.wait(lambda: isinstance(follower.events[-1], End))
    follower.close()
    metas = [event for event in follower.events if isinstance(event, Meta)]
    assert [meta.pid for meta in metas] == [first.pid, second.pid]
    assert metas[0].details["topics"] == ["events"]
    ticks = [event for event in follower.events if isinstance(event, Tick)]
    assert {each["partition"] for tick in ticks for each in tick.partitions} == {
        "events-0",
        "events-1",
    }
    assert ticks[-1].gauges["lag"] == 0
    assert follower.events[-1] == End(follower.events[-1].t, "finished")


def test_the_stream_of_a_mirror_is_found_by_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write(tmp_path / "shoal" / "mirrors" / "m", status_of(partition(0)))
    assert [(each.subject, each.name) for each in find_sources(tmp_path)] == [("mirror", "m")]
