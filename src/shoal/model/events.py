"""The event stream of a run, a cluster or a mirror: one JSON object on each line of a file.

`docs/reference/events.md` describes it for users; `telemetry/` writes and reads it.

Rules:
- The first line is a `meta` event with the version of the format. A reader refuses another version
  and ignores an incomplete last line, which is still being written.
- A process that continues the file of an earlier one (a mirror or a cluster that starts again)
  replaces the first line and keeps the others, an `end` too. Counters start at 0 again.
- Times are microseconds since the Unix epoch. Lines are in the order of writing.
- A tick has counters (cumulative, so a lost tick loses no count), gauges (a value at that time) and
  histograms (of the time since the last tick). All of them can be merged: counters by the last
  value, histograms by adding buckets. Percentiles are never written.
- A tick names partitions only if they changed, at most `MOST_PARTITIONS`, the worst first. An
  entry has `partition` ("orders-0") and the fields that `docs/reference/events.md` lists.
- Bucket i of a histogram has samples from 2**(i/16) up to 2**((i+1)/16) microseconds; samples
  below 1 µs are in bucket 0, and negative ones are counted in `negative` too.
- A file is thinned: ticks of the last hour are kept each second, those of the last day for each
  10 s, older ones for each minute. Events of other kinds are kept. If the file reaches 64 MiB, the
  oldest ticks are removed first, then the oldest other events.
- A thinned file replaces the old one under its name, so that a reader may finish the old one.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

VERSION: Final = 1
FILE_NAME: Final = "events.jsonl"
MOST_PARTITIONS: Final = 50
BUCKETS_PER_OCTAVE: Final = 16

Kind = Literal["meta", "tick", "fault", "state", "finding", "log", "end"]
Subject = Literal["run", "cluster", "mirror"]
# When a fault began and ended, and how the system answered.
FaultPhase = Literal["begin", "detected", "recovered", "drained", "end"]


@dataclass(frozen=True, slots=True)
class Meta:
    """The first event of a file: who writes it."""

    t: Annotated[int, "t"]
    version: Annotated[int, "version"]
    subject: Annotated[Subject, "subject"]
    name: Annotated[str, "name"]
    pid: Annotated[int, "pid"]
    # The start time of the process, so that a recycled process id is not taken for the writer.
    process_start: Annotated[str, "process_start"]
    details: Annotated[dict[str, Any], "details"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Latencies since the last tick, in a sparse logarithmic histogram."""

    count: Annotated[int, "count"]
    sum_us: Annotated[int, "sum_us"]
    buckets: Annotated[dict[str, int], "buckets"]  # index as text → count
    negative: Annotated[int, "negative"] = 0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU (cumulative) and resident memory of one process."""

    name: Annotated[str, "name"]  # "source broker 1", "mirror", "producer-1"
    pid: Annotated[int, "pid"]
    cpu_s: Annotated[float, "cpu_s"]
    resident_bytes: Annotated[int, "resident_bytes"]


@dataclass(frozen=True, slots=True)
class Tick:
    """What was counted up to a time."""

    t: Annotated[int, "t"]
    seconds: Annotated[float, "seconds"]  # since the last tick
    counters: Annotated[dict[str, int], "counters"] = field(default_factory=dict)
    gauges: Annotated[dict[str, float], "gauges"] = field(default_factory=dict)
    histograms: Annotated[dict[str, LatencyHistogram], "histograms"] = field(default_factory=dict)
    partitions: Annotated[list[dict[str, Any]], "partitions"] = field(default_factory=list)
    partitions_left_out: Annotated[int, "partitions_left_out"] = 0
    processes: Annotated[list[ProcessUsage], "processes"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A phase of an injected fault."""

    t: Annotated[int, "t"]
    id: Annotated[str, "id"]
    phase: Annotated[FaultPhase, "phase"]
    what: Annotated[str, "what"]  # one sentence: "kill broker 1 of the source"
    target: Annotated[str, "target"] = ""  # "source broker 1"


@dataclass(frozen=True, slots=True)
class State:
    """An object is in another state from now on."""

    t: Annotated[int, "t"]
    object: Annotated[str, "object"]  # "broker 1", "controller 2", "partition orders-0", "worker x"
    state: Annotated[str, "state"]  # "running", "paused", "dead", "leads", "in sync", "behind", …
    reason: Annotated[str, "reason"] = ""
    details: Annotated[dict[str, Any], "details"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindingSeen:
    """A finding, as far as it is known; its count is the last one that was written."""

    t: Annotated[int, "t"]
    finding: Annotated[str, "finding"]
    count: Annotated[int, "count"]
    is_certain: Annotated[bool, "is_certain"]
    witness: Annotated[dict[str, Any], "witness"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for people."""

    t: Annotated[int, "t"]
    level: Annotated[Literal["info", "warning", "error"], "level"]
    text: Annotated[str, "text"]


@dataclass(frozen=True, slots=True)
class End:
    """The last event: nothing more is written to this file."""

    t: Annotated[int, "t"]
    outcome: Annotated[Literal["finished", "interrupted", "failed"], "outcome"]
    text: Annotated[str, "text"] = ""


Event = Meta | Tick | FaultSeen | State | FindingSeen | LogLine | End
KINDS: Final[dict[str, type[Event]]] = {
    "meta": Meta,
    "tick": Tick,
    "fault": FaultSeen,
    "state": State,
    "finding": FindingSeen,
    "log": LogLine,
    "end": End,
}
