"""The data behind the page of a finished run: `page.json` in its folder.

An audit writes the file; `docs/reference/results.md` describes it for users.

Rules:
- The file has a version. A reader refuses another one, and a file above `MOST_BYTES`.
- Times are microseconds since the Unix epoch unless a name says otherwise.
- Bucket i of a latency histogram has samples from 2**(i/16) up to 2**((i+1)/16) microseconds, as
  in the event stream; samples below 1 µs are in bucket 0. Histograms of bins can be added.
- A message that is owed and did not arrive counts in `never`: it is later than every sample. So a
  percentile that losses reach is None, which reports write as "never".
- Warm-up is included: these are pictures of the whole run, not its metrics.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from shoal.model.errors import LedgerError
from shoal.model.events import BUCKETS_PER_OCTAVE
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

VERSION: Final = 1
FILE_NAME: Final = "page.json"
MOST_BYTES: Final = 2_000_000
MOST_BINS: Final = 400
NARROWEST_BIN_US: Final = 10_000
MOST_LANES: Final = 20

Buckets = dict[str, int]  # bucket as text → count


@dataclass(frozen=True, slots=True)
class TimeBins:
    """Counts for each bin of time; all lists have one entry per bin.

    Bin i is from `start_us + i * bin_us`, `bin_us` long. `acknowledged` and `received` (first
    deliveries) count when that happened; `due`, `lost`, `never` and `latency` count by intended
    send time. `never` are all messages owed that did not arrive: lost and pending.
    `undated_never` are those without a known send time, which are in no bin.
    """

    start_us: Annotated[int, "start_us"] = 0
    bin_us: Annotated[int, "bin_us"] = NARROWEST_BIN_US
    due: Annotated[list[int], "due"] = field(default_factory=list)
    acknowledged: Annotated[list[int], "acknowledged"] = field(default_factory=list)
    received: Annotated[list[int], "received"] = field(default_factory=list)
    lost: Annotated[list[int], "lost"] = field(default_factory=list)
    never: Annotated[list[int], "never"] = field(default_factory=list)
    latency: Annotated[list[Buckets], "latency"] = field(default_factory=list)
    undated_never: Annotated[int, "undated_never"] = 0


@dataclass(frozen=True, slots=True)
class FlowStage:
    """One place that messages pass.

    `count` are the messages that came this far, each once; `lost` are owed messages that came to
    the stage before and not to this one; `duplicated` are surplus copies here.
    """

    name: Annotated[str, "name"]  # sent, source, mirror, target, received
    count: Annotated[int, "count"]
    lost: Annotated[int, "lost"] = 0
    duplicated: Annotated[int, "duplicated"] = 0


@dataclass(frozen=True, slots=True)
class FlowCounts:
    """How many messages came how far; without a mirror there is neither `mirror` nor `target`.

    `failed` attempts were refused and are owed to nobody; `unlocated` losses have no known stage;
    `pending` messages may still arrive.
    """

    stages: Annotated[tuple[FlowStage, ...], "stages"] = ()
    acknowledged: Annotated[int, "acknowledged"] = 0
    failed: Annotated[int, "failed"] = 0
    unlocated: Annotated[int, "unlocated"] = 0
    pending: Annotated[int, "pending"] = 0


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane of one producer over intended send time, for a strip chart.

    `stretches` are (first and last intended send in µs from the start of the bins, messages due,
    messages affected by a finding), in order of sequence. `findings` are counts in the whole lane.
    """

    producer: Annotated[str, "producer"]
    topic: Annotated[str, "topic"]
    lane: Annotated[int, "lane"]
    due: Annotated[int, "due"]
    affected: Annotated[int, "affected"]
    findings: Annotated[dict[str, int], "findings"] = field(default_factory=dict)
    stretches: Annotated[tuple[tuple[int, int, int, int], ...], "stretches"] = ()

    @property
    def share(self) -> float:
        """The share of the messages that a finding affects, from 0 to 1."""
        return min(self.affected / self.due, 1.0) if self.due else float(bool(self.affected))


@dataclass(frozen=True, slots=True)
class PercentileCurve:
    """End-to-end latency from the intended send, for one phase of the run.

    `phase` is `before`, `during` or `after` faults, or `whole` for a run without faults. `points`
    are (percentile, µs); None where losses reach the rank.
    """

    phase: Annotated[str, "phase"]
    count: Annotated[int, "count"]
    never: Annotated[int, "never"]
    points: Annotated[tuple[tuple[float, int | None], ...], "points"] = ()


@dataclass(frozen=True, slots=True)
class GroupPage:
    """The pictures of one consumer group."""

    bins: Annotated[TimeBins, "bins"]
    flow: Annotated[FlowCounts, "flow"]
    lanes: Annotated[tuple[LaneRow, ...], "lanes"] = ()
    curves: Annotated[tuple[PercentileCurve, ...], "curves"] = ()


@dataclass(frozen=True, slots=True)
class PageData:
    """The pictures of a run, by consumer group; the worst group is first.

    `left_out` are groups for which `MOST_BYTES` leaves no room.
    """

    run: Annotated[str, "run"]
    groups: Annotated[dict[str, GroupPage], "groups"]
    left_out: Annotated[tuple[str, ...], "left_out"] = ()
    version: Annotated[int, "version"] = VERSION

    def to_bytes(self) -> bytes:
        return json.dumps(to_plain(self), ensure_ascii=False, separators=(",", ":")).encode()


def read_page(run_dir: Path) -> PageData | None:
    """Read the `page.json` of a run; None if it has none (`LedgerError` if it is not valid)."""
    path = run_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return parse_page(content)
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{path} is not a valid page: {error!s:.200}",
            remedy="audit the run again with this version: shoal audit RUN",
        ) from error


def parse_page(content: bytes) -> PageData:
    """Return the data in the bytes of a `page.json`; `ValueError` if it is not valid."""
    if len(content) > MOST_BYTES:
        raise FormatMismatch(f"is larger than {MOST_BYTES:,} bytes")
    body: Any = json.loads(content)
    if not isinstance(body, dict):
        raise FormatMismatch("is not an object")
    check_version(body.get("version"), (VERSION,))
    return from_plain(PageData, body)


def bucket_bounds_us(bucket: int) -> tuple[float, float]:
    """Return the lower and the upper bound of a bucket in µs."""
    low = 0.0 if bucket == 0 else 2 ** (bucket / BUCKETS_PER_OCTAVE)
    return low, 2 ** ((bucket + 1) / BUCKETS_PER_OCTAVE)


def add_buckets(histograms: Iterable[Mapping[str, int]]) -> Buckets:
    """Return the sum of histograms, in order of buckets."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[int(bucket)] = total.get(int(bucket), 0) + count
    return {str(bucket): total[bucket] for bucket in sorted(total)}


def percentile_us(buckets: Mapping[str, int], percent: float, *, never: int = 0) -> float | None:
    """Return the upper bound of the bucket with this percentile, by nearest rank.

    None if the rank is among the messages that never arrived, or without any message.
    """
    total = sum(buckets.values()) + never
    # Whole numbers: 99.9 % of 1000 is rank 999 and not, by a rounding error, 1000.
    rank = max(-(-total * round(percent * 1000) // 100_000), 1)
    reached = 0
    for bucket, count in sorted((int(name), count) for name, count in buckets.items()):
        reached += count
        if reached >= rank:
            return bucket_bounds_us(bucket)[1]
    return None
