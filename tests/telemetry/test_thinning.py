"""Ticks are merged as the contract says, and all other events stay."""

from collections import Counter
from pathlib import Path

import pytest

from shoal.model.events import Event, LatencyHistogram, ProcessUsage, State, Tick
from shoal.telemetry.events import EventReader, EventWriter
from shoal.telemetry.histogram import merge
from shoal.telemetry.lines import decode_event, encode_event
from shoal.telemetry.thinning import DAY_US, HOUR_US, merge_ticks, thin

SECOND_US = 1_000_000
# A whole minute, so that periods begin at it.
START_US = 1_700_000_040 * SECOND_US
META = b'{"kind":"meta"}\n'


class FakeClock:
    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        return self.us


def tick_at(number: int) -> Tick:
    return Tick(
        START_US + number * SECOND_US,
        1.0,
        {"sent": number},
        {"lag": number % 7 + 0.5},
        {"e2e": LatencyHistogram(1, number, {str(number % 100): 1})},
        [{"partition": f"t-{number % 4}", "position": number}],
        0,
        [ProcessUsage("mirror", 7, float(number), 1000 + number)],
    )


def thin_events(events: list[Event], now_us: int, most_bytes: int = 1 << 30) -> list[Event]:
    lines = thin([META, *map(encode_event, events)], now_us, most_bytes=most_bytes)
    assert lines[0] == META
    return [decode_event(line) for line in lines[1:]]


@pytest.mark.parametrize(
    ("age_us", "kept"),
    [
        (59 * 60 * SECOND_US, 120),
        (HOUR_US + 300 * SECOND_US, 12),
        (DAY_US - SECOND_US, 12),
        (DAY_US + 300 * SECOND_US, 2),
        (30 * DAY_US, 2),
    ],
)
def test_ticks_of_two_minutes_are_thinned_by_their_age(age_us: int, kept: int) -> None:
    ticks: list[Event] = [tick_at(number) for number in range(120)]
    found = thin_events(ticks, START_US + age_us)
    assert len(found) == kept
    assert sum(tick.seconds for tick in found if isinstance(tick, Tick)) == 120
    last = found[-1]
    assert isinstance(last, Tick)
    assert last.counters == {"sent": 119}
    samples = merge(tick.histograms["e2e"] for tick in found if isinstance(tick, Tick))
    assert samples == merge(tick_at(number).histograms["e2e"] for number in range(120))


def test_thinning_in_steps_is_thinning_at_once() -> None:
    ticks: list[Event] = [tick_at(number) for number in range(300)]
    at_once = thin_events(ticks, START_US + 2 * DAY_US)
    in_steps = ticks
    for age_us in (HOUR_US + 33 * SECOND_US, HOUR_US + 201 * SECOND_US, 3 * HOUR_US, 2 * DAY_US):
        in_steps = thin_events(in_steps, START_US + age_us)
    assert in_steps == at_once


def test_a_merged_tick_has_the_last_entry_of_each_partition_and_process() -> None:
    merged = merge_ticks([tick_at(number) for number in range(10)])
    positions = {each["partition"]: each["position"] for each in merged.partitions}
    assert positions == {"t-0": 8, "t-1": 9, "t-2": 6, "t-3": 7}
    assert merged.processes == [ProcessUsage("mirror", 7, 9.0, 1009)]


def test_other_events_stay_in_their_order() -> None:
    events: list[Event] = []
    for number in range(120):
        events += [tick_at(number), State(START_US + number * SECOND_US, "broker 1", f"s{number}")]
    found = thin_events(events, START_US + 10 * DAY_US)
    assert Counter(type(each).__name__ for each in found) == {"State": 120, "Tick": 2}
    times = [each.t for each in found]
    assert times == sorted(times)


def test_a_file_has_a_largest_size() -> None:
    events: list[Event] = []
    for number in range(500):
        events += [tick_at(number), State(START_US + number * SECOND_US, "broker 1", f"s{number}")]
    now_us = START_US + 600 * SECOND_US
    half = thin_events(events, now_us, most_bytes=90_000)
    assert sum(len(encode_event(each)) for each in half) <= 90_000
    assert len([each for each in half if isinstance(each, State)]) == 500
    ticks = [each for each in half if isinstance(each, Tick)]
    assert ticks == events[-2 * len(ticks) :: 2]  # the newest
    few = thin_events(events, now_us, most_bytes=5_000)
    assert sum(len(encode_event(each)) for each in few) <= 5_000
    assert few[-1] == events[-1]
    assert not [each for each in few if isinstance(each, Tick)]


def test_a_reader_follows_a_file_that_is_thinned_by_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    writer = EventWriter(tmp_path, "mirror", "m", clock_us=clock)
    reader = EventReader(tmp_path)
    seen: list[Event] = []
    for number in range(2 * 3600):
        clock.us += SECOND_US
        writer.tick(counters={"records": number})
        if number % 600 == 0:
            found = reader.read()
            assert not found.is_restarted
            seen += found.events
    writer.thin()
    writer.close("finished")
    while more := reader.read().events:
        seen += more
    reader.close()
    ticks = [each.counters["records"] for each in seen if isinstance(each, Tick)]
    assert ticks == list(range(2 * 3600))
    kept = EventReader(tmp_path)
    left: list[Event] = []
    while more := kept.read().events:
        left += more
    kept.close()
    assert 3600 < len(left) < 3600 + 600 + 360 + 10
    assert left[-2:] == seen[-2:]


def test_a_day_and_more_by_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    writer = EventWriter(tmp_path, "cluster", "c", clock_us=clock)
    for minute in range(3 * 24 * 60):
        for _ in range(2):
            clock.us += 30 * SECOND_US
            writer.tick(counters={"records": minute})
    writer.thin()
    writer.close()
    reader = EventReader(tmp_path)
    ticks = [each for each in reader.read().events if isinstance(each, Tick)]
    reader.close()
    age_s = [(clock.us - tick.t) // SECOND_US for tick in ticks]
    assert len([age for age in age_s if age > 86400]) in (2 * 1440, 2 * 1440 + 1)
    assert len([age for age in age_s if age <= 86400]) in (2 * 1440, 2 * 1440 + 1)
    assert sum(tick.seconds for tick in ticks) == 3 * 86400
