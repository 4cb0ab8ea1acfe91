"""Events are written and read as the contract says: versions, torn lines, followers, full disks."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.model.errors import LedgerError
from shoal.model.events import (
    FILE_NAME,
    MOST_PARTITIONS,
    End,
    Event,
    FaultSeen,
    FindingSeen,
    LatencyHistogram,
    LogLine,
    Meta,
    ProcessUsage,
    State,
    Subject,
    Tick,
)
from shoal.telemetry.events import EventReader, EventWriter
from shoal.telemetry.lines import DamagedLine, decode_event, encode_event
from shoal.telemetry.processes import read_usage, read_usages

EVENTS: list[Event] = [
    Meta(1, 1, "run", "r", 7, "boot/3", {"command": ["shoal"]}),
    Tick(2, 1.0),
    Tick(
        3,
        1.5,
        {"sent": 4},
        {"lag": 0.5},
        {"e2e": LatencyHistogram(2, 9, {"3": 2}, 1)},
        [{"partition": "orders-0", "lag": 3}],
        2,
        [ProcessUsage("mirror", 8, 0.25, 4096)],
    ),
    FaultSeen(4, "1", "begin", "kill broker 1 of the source", "source broker 1"),
    State(5, "broker 1", "dead", "killed\nby ü", {"epoch": 4}),
    FindingSeen(6, "lost", 3, is_certain=False, witness={"offset": 5}),
    LogLine(7, "warning", "text\r\n"),
    End(8, "finished", "PROVEN: all."),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_their_line(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"[]", b"7", b'{"kind":"tock","t":1}', b'{"kind":"log","t":"x"}']
)
def test_other_lines_are_not_events(line: bytes) -> None:
    with pytest.raises(DamagedLine):
        decode_event(line)


META = b'{"kind":"meta","t":1,"version":%s,"subject":"%s","name":"n","pid":1,%s"details":{}}\n'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (META % (b"2", b"run", b'"process_start":"x",'), "has version 2; this version of shoal"),
        (META % (b'"1"', b"run", b'"process_start":"x",'), "has version '1'; this"),
        (META % (b"null", b"run", b'"process_start":"x",'), "has version None; this"),
        (META % (b"1", b"train", b'"process_start":"x",'), "subject is 'train', not one of"),
        (META % (b"1", b"run", b""), "lacks the field 'process_start'"),
        (b'{"kind":"tick","t":1}\n', "does not begin with a meta event"),
        (b"hello\n", "is not an event stream"),
        (b"[]\n", "is not an event stream"),
    ],
)
def test_a_stream_of_another_version_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    reader = EventReader(tmp_path)
    with pytest.raises(LedgerError, match=reason) as refused:
        reader.read()
    reader.close()
    assert str(tmp_path) in str(refused.value)
    assert refused.value.remedy


def read_all(folder: Path) -> list[Event]:
    reader = EventReader(folder)
    events = _read_rest(reader)
    reader.close()
    return events


def _read_rest(reader: EventReader) -> list[Event]:
    events: list[Event] = []
    while found := reader.read().events:
        events += found
    return events


def test_what_is_written_is_read_while_it_grows(tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    assert reader.read().events == []
    writer = EventWriter(tmp_path, "run", "r", details={"a": 1})
    (meta,) = reader.read().events
    assert isinstance(meta, Meta)
    assert (meta.subject, meta.name, meta.pid, meta.details) == ("run", "r", os.getpid(), {"a": 1})
    assert reader.is_writer_alive()
    for event in EVENTS[1:-1]:
        writer.append(event)
        assert reader.read().events == [event]
    assert (reader.read().events, reader.is_ended) == ([], False)
    writer.close("finished", "good")
    writer.close("failed")
    (end,) = reader.read().events
    assert isinstance(end, End)
    assert (end.outcome, end.text) == ("finished", "good")
    assert reader.is_ended
    reader.close()


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    reader = EventReader(tmp_path)
    with (tmp_path / FILE_NAME).open("wb", buffering=0) as file:
        content = b"".join(map(encode_event, EVENTS))
        read: list[Event] = []
        for place in range(0, len(content), 7):
            file.write(content[place : place + 7])
            read += reader.read().events
    reader.close()
    assert read == EVENTS


def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = [encode_event(event) for event in EVENTS]
    (tmp_path / FILE_NAME).write_bytes(b"".join([*lines[:3], b"\0\0\0\n", *lines[3:]]))
    reader = EventReader(tmp_path)
    assert reader.read().events == EVENTS
    assert reader.damaged == 1
    reader.close()


def test_a_state_is_written_when_it_changes(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "cluster", "c")
    for state in ("running", "running", "dead", "dead", "running"):
        writer.set_state("broker 1", state)
    writer.forget_state("broker 1")
    writer.set_state("broker 1", "running")
    writer.close()
    states = [event.state for event in read_all(tmp_path) if isinstance(event, State)]
    assert states == ["running", "dead", "running", "running"]


def test_a_tick_names_a_limited_number_of_partitions(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "cluster", "c")
    writer.tick(partitions=[{"partition": f"t-{number}"} for number in range(80)])
    writer.close()
    tick = read_all(tmp_path)[-1]
    assert isinstance(tick, Tick)
    assert [each["partition"] for each in tick.partitions] == [
        f"t-{number}" for number in range(MOST_PARTITIONS)
    ]
    assert tick.partitions_left_out == 80 - MOST_PARTITIONS


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "run", "r")

    def write(who: int) -> None:
        for number in range(300):
            writer.log("info", f"{who} {number} " + "x" * number)
            if number % 50 == 0:
                writer.thin()

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    reader = EventReader(tmp_path)
    seen: list[Event] = []
    while any(thread.is_alive() for thread in threads):
        seen += reader.read().events
    writer.close("finished")
    seen += _read_rest(reader)
    reader.close()
    assert reader.damaged == 0
    for events in (seen, read_all(tmp_path)):
        logs = [event.text.split()[:2] for event in events if isinstance(event, LogLine)]
        assert sorted(logs) == sorted(
            [str(who), str(number)] for who in range(4) for number in range(300)
        )
        assert isinstance(events[-1], End)


WRITE_FOR_EVER = """
import sys, itertools
from pathlib import Path
from shoal.telemetry.events import EventWriter
writer = EventWriter(Path(sys.argv[1]), "mirror", "m")
for number in itertools.count():
    writer.log("info", f"{number} " + "x" * (number % 5000))
    if number % 100 == 99:
        writer.thin()
    if number == 1000:
        print("enough", flush=True)
"""


def test_a_reader_follows_a_writer_that_is_killed_and_its_successor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)]
    seen: list[Event] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        reader = EventReader(tmp_path)
        while not (tmp_path / FILE_NAME).exists() or len(seen) < 500:
            found = reader.read()
            assert not found.is_restarted
            seen += found.events
        assert reader.is_writer_alive()
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not reader.is_writer_alive()
    while found.events or len(seen) < 1000:
        found = reader.read()
        seen += found.events
    # As if the kill had come in the middle of a write.
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"kind":"log","t":1,"lev')
    assert reader.read().events == []
    writer = EventWriter(tmp_path, "mirror", "m")
    writer.log("info", "the last")
    writer.close("finished")
    while (found := reader.read()).events:
        assert not found.is_restarted
        seen += found.events
    reader.close()
    assert reader.damaged == 0
    assert isinstance(seen[0], Meta)
    assert [event.pid for event in seen if isinstance(event, Meta)] == [process.pid, os.getpid()]
    texts = [event.text.split()[0] for event in seen if isinstance(event, LogLine)]
    assert texts == [*map(str, range(len(texts) - 1)), "the"]
    kept = read_all(tmp_path)
    # The state says that the first was killed.
    assert isinstance(seen[-3], State)
    assert kept == [seen[-4], *(event for event in seen if not isinstance(event, Meta))]


@pytest.mark.parametrize(("subject", "is_said"), [("mirror", True), ("cluster", False)])
@pytest.mark.parametrize("is_ended", [True, False])
def test_the_next_mirror_says_that_the_one_before_was_killed(
    subject: Subject, is_said: bool, is_ended: bool, tmp_path: Path
) -> None:
    times = iter(range(1_000, 100_000, 1_000))
    first = EventWriter(tmp_path, subject, "m", clock_us=lambda: next(times))
    first.set_state("mirror", "running")
    first.tick()
    first.close("finished" if is_ended else None)
    second = EventWriter(tmp_path, subject, "m", clock_us=lambda: next(times))
    second.set_state("mirror", "running")
    second.close()
    states = [each for each in EventReader(tmp_path).read().events if isinstance(each, State)]
    dead = [each for each in states if each.state == "dead"]
    assert len(dead) == (is_said and not is_ended)
    assert [each.t for each in dead] == [3_000] * len(dead)
    assert states[-1].state == "running"


def test_a_file_of_something_else_is_replaced(tmp_path: Path) -> None:
    EventWriter(tmp_path, "cluster", "c").close("finished")
    reader = EventReader(tmp_path)
    assert len(reader.read().events) == 2
    EventWriter(tmp_path, "run", "r").close("finished")
    found = reader.read()
    reader.close()
    assert found.is_restarted
    assert [type(event).__name__ for event in found.events] == ["Meta", "End"]


FILL_THE_DISK = """
import logging, resource, sys
from pathlib import Path
from shoal.telemetry.events import EventWriter
logging.basicConfig(format="%(message)s")
writer = EventWriter(Path(sys.argv[1]), "run", "r")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for number in range(100):
    writer.log("info", f"{number} " + "x" * 30)
writer.thin()
writer.close("finished")
print(writer.is_writing)
"""


def test_a_full_disk_is_reported_once_and_leaves_whole_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL_THE_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"cannot write events to {tmp_path / FILE_NAME}: ")
    assert (tmp_path / FILE_NAME).read_bytes().endswith(b'"}\n')
    logs = [event.text.split()[0] for event in read_all(tmp_path) if isinstance(event, LogLine)]
    assert 10 < len(logs) < 40
    assert logs == [str(number) for number in range(len(logs))]


@pytest.mark.parametrize("is_thinning", [False, True])
def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_thinning: bool
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        writer = EventWriter(tmp_path / "file" / "folder", "run", "r")
        writer.tick(counters={"sent": 1})
        if is_thinning:
            writer.thin()
        writer.close("finished")
    assert len(caplog.records) == 1
    assert "what runs continues without them" in caplog.text


def test_the_usage_of_processes_is_read() -> None:
    mine = read_usage("me", os.getpid())
    assert mine is not None
    assert (mine.name, mine.pid) == ("me", os.getpid())
    assert mine.cpu_s > 0
    assert mine.resident_bytes > 1_000_000
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    names = [each.name for each in read_usages([("me", os.getpid()), ("none", 0)])]
    assert names == ["me"]
    assert read_usage("ended", child.pid) is None
