"""Traces: ShiViz's rules hold for what nodes write, whoever is killed in between."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import CLOCK_TAG, ClockCarrier, merge_request_clock, stamp_answer
from shoal.lite.base.hooks.tracer import Tracer
from shoal.lite.cluster import LiteCluster
from shoal.lite.testing.trace.shiviz import events_of, merge_logs
from shoal.model.errors import UsageError
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import (
    decode_request_header,
    decode_response_header,
    put_request_header,
    put_response_header,
    request_header_tag,
    response_header_tag,
)
from support.lite.clusters import create_topic, eventually, in_sync, partition_of, send


class Seen(NamedTuple):
    """An event as ShiViz reads it."""

    host: str
    clock: dict[str, int]
    text: str

    @property
    def number(self) -> int:
        return self.clock[self.host]


def parse_trace(trace: str) -> list[Seen]:
    """Read a file as ShiViz does, and refuse what it refuses."""
    pattern, empty, log = trace.split("\n", 2)
    assert pattern == r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"
    assert empty == ""
    found = re.compile(pattern.replace("(?<", "(?P<"))
    position = 0
    events = []
    while position < len(log):
        match = found.match(log, position)
        assert match is not None, log[position : position + 100]
        clock = json.loads(match["clock"])
        assert all(isinstance(count, int) and count > 0 for count in clock.values())
        events.append(Seen(match["host"], clock, match["event"]))
        assert log[match.end()] == "\n"
        position = match.end() + 1
    return events


def check_rules(trace: str) -> list[Seen]:
    """Every rule of ShiViz, one by one; returns the events."""
    events = parse_trace(trace)
    by_host: dict[str, list[Seen]] = {}
    for event in events:
        assert event.host
        assert event.text
        # The own host is in the clock.
        assert event.host in event.clock
        by_host.setdefault(event.host, []).append(event)
    for own in by_host.values():
        # The own counter is 1, 2, 3 and so on.
        assert [event.number for event in own] == list(range(1, len(own) + 1))
        assert own[0].text == "Initialization Complete"
        assert all(re.match(r"(INFO|WARNING) \S", event.text) for event in own[1:])
    for event in events:
        for host, count in event.clock.items():
            # Nobody knows of an event that is not there.
            assert count <= len(by_host.get(host, []))
            cause = by_host[host][count - 1]
            # Whoever knows of an event knows of all before it, and none of them knows of him.
            assert all(event.clock.get(name, 0) >= n for name, n in cause.clock.items())
            assert host == event.host or cause.clock.get(event.host, 0) < event.number
    return events


def the(events: list[Seen], host: str, words: str) -> Seen:
    """The first event of a node in which these words are."""
    return next(event for event in events if event.host == host and words in event.text)


def is_before(first: Seen, second: Seen) -> bool:
    return second.clock.get(first.host, 0) >= first.number


def test_an_election_in_between_of_writes(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with LiteCluster(brokers=3, directory=folder, trace=True) as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        leader = partition_of(cluster, "t").leader
        # While it runs, logs are read one after the other.
        check_rules(cluster.merged_trace())
        cluster.kill(leader)
        assert send(cluster, "t", b"b") == [None]
        eventually(lambda: partition_of(cluster, "t").leader not in {leader, -1})
        elected = partition_of(cluster, "t").leader
        cluster.restart(leader)
        eventually(lambda: in_sync(cluster, "t") == {1, 2, 3})
    command = [sys.executable, "-m", "shoal", "cluster", "trace", "--dir", str(folder)]
    output = tmp_path / "trace.log"
    subprocess.run([*command, "--output", str(output)], check=True, timeout=200)
    events = check_rules(output.read_text())
    printed = subprocess.run(command, check=True, timeout=200, capture_output=True, text=True)
    assert printed.stdout == output.read_text()
    assert {event.host for event in events} == {"b1", "b2", "b3", "c100"}
    old, new = f"b{leader}", f"b{elected}"
    # Leaders at the beginning.
    for broker in ("b1", "b2", "b3"):
        registered = the(events, "c100", f"broker {broker[1:]} is registered")
        assert is_before(the(events, broker, "registers with"), registered)
    first = the(events, "c100", f"t-0: broker {leader} is the first to lead")
    assert is_before(first, the(events, old, "t-0: leads in epoch 0"))
    # A write and its replication.
    written = the(events, old, "t-0: writes 1 record(s) at offset 0")
    committed = the(events, old, "t-0: the high watermark is 1")
    for follower in {"b1", "b2", "b3"} - {old}:
        copied = the(events, follower, "t-0: has copied the records below 1")
        assert is_before(written, copied)
        assert is_before(copied, committed)
    # An election.
    died = the(events, "c100", f"broker {leader} ends or has ended")
    election = the(events, "c100", f"t-0: broker {elected} is elected")
    takes_over = the(events, new, "t-0: leads in epoch 1")
    assert is_before(died, election)
    assert is_before(election, takes_over)
    assert is_before(takes_over, the(events, old, "t-0: follows"))
    assert is_before(the(events, old, "starts again"), the(events, "c100", "t-0: in sync are 1, 2"))


def test_controllers_of_their_own_are_traced_too() -> None:
    with LiteCluster(brokers=1, controllers=3, trace=True) as cluster:
        create_topic(cluster, "t", 1, 1)
        assert send(cluster, "t", b"a") == [None]
        events = check_rules(cluster.merged_trace())
    controllers = {event.host for event in events if event.host.startswith("c")}
    assert len(controllers) == 3
    assert any("is the active controller" in event.text for event in events)


def test_without_the_flag_nothing_is_traced(tmp_path: Path) -> None:
    with LiteCluster(directory=tmp_path / "cluster") as cluster:
        with pytest.raises(UsageError, match="no trace"):
            cluster.merged_trace()
        assert not (tmp_path / "cluster" / "trace").exists()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Tracer]:
    tracer.current = Tracer(tmp_path / "b1-Log.txt", "b1")
    yield tracer.current
    tracer.current.close()
    tracer.current = None


def test_a_log_goes_on_where_it_ended_also_in_the_middle_of_an_event(tmp_path: Path) -> None:
    path = tmp_path / "b1-Log.txt"
    first = Tracer(path, "b1")
    first.merge(b'{"b2":7, "c1":1}')
    first.event("something\nwith a line")
    first.close()
    whole = path.read_text()
    assert whole == (
        'b1 {"b1":1}\nInitialization Complete\n'
        'b1 {"b1":2, "b2":7, "c1":1}\nINFO something with a line\n'
    )
    for torn in ("", "b1", 'b1 {"b1":3}\n', 'b1 {"b1":3}\nINFO half'):
        path.write_text(whole + torn)
        again = Tracer(path, "b1")
        assert again.clock == {"b1": 3, "b2": 7, "c1": 1}
        again.close()
        assert path.read_text() == whole + 'b1 {"b1":3, "b2":7, "c1":1}\nINFO starts again\n'


def test_a_trace_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "MOST_EVENTS", 4)
    one = Tracer(tmp_path / "b1-Log.txt", "b1")
    for number in range(10):
        one.event(f"event {number}")
    one.close()
    events = check_rules(merge_logs([events_of((tmp_path / "b1-Log.txt").read_text())]))
    assert len(events) == 4
    assert events[-1].text.startswith("WARNING")


def test_events_that_know_of_later_ones_are_left_out() -> None:
    first = events_of('b1 {"b1":1}\nx\nb1 {"b1":2, "b2":3}\ny\nb1 {"b1":3, "b2":3}\nz\n')
    second = events_of('b2 {"b2":1}\nx\nb2 {"b1":2, "b2":2}\ny\n')
    assert [event.number for event in parse_trace(merge_logs([first, second]))] == [1, 1]


def test_clocks_travel_in_headers_of_flexible_versions(own: Tracer) -> None:
    own.event("something")
    carrier = ClockCarrier(own)

    def request(version: int, tags: Sequence[tuple[int, bytes]] = ()) -> bytearray:
        return put_request_header(
            ApiKey.FETCH, version, correlation_id=5, client_id="broker-1", tags=tags
        )

    plain = request(11)
    assert carrier.outgoing([plain, b"body"]) == [plain, b"body"]
    for tags in ([], [(10_000, b"other")]):
        [first, body] = carrier.outgoing([request(16, tags) + b"and", b"body"])
        header = decode_request_header(first)
        assert (header.client_id, header.correlation_id) == ("broker-1", 5)
        assert bytes(first[header.body_position :]) + bytes(body) == b"andbody"
        assert request_header_tag(first, CLOCK_TAG) == own.stamp()
        assert request_header_tag(first, 10_000) == (b"other" if tags else None)
        assert merge_request_clock(memoryview(bytes(first)))
    assert not merge_request_clock(memoryview(bytes(plain)))
    assert not merge_request_clock(memoryview(bytes(request(16))))
    own.event("something else")
    answer = put_response_header(ApiKey.FETCH, 16, correlation_id=5) + b"body"
    [sent] = stamp_answer([bytes(answer)])
    assert response_header_tag(sent, CLOCK_TAG) == own.stamp()
    position = decode_response_header(sent, ApiKey.FETCH, 16)[1]
    assert sent[position:] == b"body"


def test_a_foreign_clock_becomes_part_of_ours(own: Tracer) -> None:
    carrier = ClockCarrier(own)
    [first] = carrier.outgoing(
        [put_request_header(ApiKey.FETCH, 16, correlation_id=9, client_id=None)]
    )
    header = put_response_header(
        ApiKey.FETCH, 16, correlation_id=9, tags=[(CLOCK_TAG, b'{"b2":4, "b1":1}')]
    )
    carrier.incoming(memoryview(bytes(header)))
    assert own.clock == {"b1": 1, "b2": 4}
    for wrong in (b"rubbish", b"[]", b'{"b2":"x"}', b'{"b2":9}' + bytes(20_000)):
        tags = [(CLOCK_TAG, wrong)]
        frame = put_request_header(ApiKey.FETCH, 16, correlation_id=9, client_id=None, tags=tags)
        assert not merge_request_clock(memoryview(bytes(frame)))
    assert own.clock == {"b1": 1, "b2": 4}
    assert first
