"""Which lines of an event stream are kept: fewer ticks of older times, and a limit of the size.

Rules:
- Ticks of the last hour stay as they are. Those of the last day are merged to one for each 10 s,
  older ones to one for each minute. Events of other kinds stay, in their order.
- A merged tick has the last counters and gauges, the sum of seconds and histograms, and for each
  partition and process its last entry. Merging ticks in several steps gives the same.
- If the lines are still too long together, the oldest ticks are removed, then the oldest others.

Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from shoal.model.events import MOST_PARTITIONS, LogLine, Tick
from shoal.telemetry.histogram import merge
from shoal.telemetry.lines import DamagedLine, decode_event, encode_event, kind_and_time

HOUR_US: Final = 3600 * 1_000_000
DAY_US: Final = 24 * HOUR_US
_PERIODS_US: Final = ((DAY_US, 60_000_000), (HOUR_US, 10_000_000))


def thin(lines: Iterable[bytes], now_us: int, *, most_bytes: int) -> list[bytes]:
    """The lines to keep; the first one is the meta event."""
    first, *rest = lines
    kept = _shorten(_merge_old_ticks(rest, now_us), now_us, most_bytes - len(first))
    return [first, *kept]


def _merge_old_ticks(lines: Sequence[bytes], now_us: int) -> list[bytes]:
    kept: list[bytes] = []
    group: list[Tick] = []
    # The line of an open group is at the place of its last tick.
    place, period = -1, (0, 0)
    for line in lines:
        kind, t = kind_and_time(line)
        if not kind:
            continue
        length_us = _period_us(now_us - t) if kind == "tick" else 0
        tick = _decode_tick(line) if length_us else None
        if tick is None:
            kept.append(line)
            continue
        if (length_us, t // length_us) != period:
            group, period = [], (length_us, t // length_us)
        elif place >= 0:
            kept[place] = b""
        group.append(tick)
        place = len(kept)
        kept.append(line if len(group) == 1 else encode_event(merge_ticks(group)))
    return [line for line in kept if line]


def _period_us(age_us: int) -> int:
    return next((period_us for limit_us, period_us in _PERIODS_US if age_us > limit_us), 0)


def _decode_tick(line: bytes) -> Tick | None:
    try:
        event = decode_event(line)
    except DamagedLine:
        return None
    return event if isinstance(event, Tick) else None


def merge_ticks(ticks: Sequence[Tick]) -> Tick:
    """One tick for the whole time of several."""
    last = ticks[-1]
    names = dict.fromkeys(name for tick in ticks for name in tick.histograms)
    partitions = {str(each.get("partition")): each for tick in ticks for each in tick.partitions}
    processes = {(each.name, each.pid): each for tick in ticks for each in tick.processes}
    shown = list(partitions.values())[-MOST_PARTITIONS:]
    left_out = max(tick.partitions_left_out for tick in ticks) + len(partitions) - len(shown)
    return Tick(
        t=last.t,
        seconds=round(sum(tick.seconds for tick in ticks), 6),
        counters={name: value for tick in ticks for name, value in tick.counters.items()},
        gauges={name: value for tick in ticks for name, value in tick.gauges.items()},
        histograms={
            name: merge(tick.histograms[name] for tick in ticks if name in tick.histograms)
            for name in names
        },
        partitions=shown,
        partitions_left_out=left_out,
        processes=list(processes.values()),
    )


def _shorten(lines: list[bytes], now_us: int, most_bytes: int) -> list[bytes]:
    excess = sum(map(len, lines)) - most_bytes
    if excess <= 0:
        return lines
    text = "older events were removed, because the file has reached its largest size"
    notice = encode_event(LogLine(now_us, "warning", text))
    excess += len(notice)
    removed: set[int] = set()
    # False sorts first: ticks before all others, and both from the oldest on.
    order = sorted(range(len(lines)), key=lambda at: kind_and_time(lines[at])[0] != "tick")
    for at in order:
        if excess <= 0:
            break
        removed.add(at)
        excess -= len(lines[at])
    return [notice, *(line for at, line in enumerate(lines) if at not in removed)]
