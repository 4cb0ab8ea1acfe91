"""Exact percentiles of samples that nobody holds together.

The sample of a rank is the smallest value that at least `rank` samples do not exceed. The driver
knows the extremes. In each round it asks all runs how many samples do not exceed each of at most
255 values between two bounds; with both bounds these are at most 257 edges. The sums tell between
which two neighbours the sample lies, so the interval shrinks 256-fold in each round. All ranks
share the rounds. What travels does not depend on the number of messages.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from shoal.audit.arrays import Ints
from shoal.audit.times.runs import LatencySummary, Question
from shoal.model.result import PERCENTILES, Latency

PARTS: Final = 256  # into which a round cuts an interval
MOST_QUESTIONS: Final = 1024  # of one round

Share = tuple[int, int]  # numerator and denominator
RESULT_SHARES: Final = tuple((numerator, denominator) for _, numerator, denominator in PERCENTILES)

Counter = Callable[[Sequence[Question]], list[Ints]]


class SampleSet(NamedTuple):
    """The samples of a group and name, in some segments of time or in all."""

    group: str | None
    name: str
    segments: frozenset[int] | None = None


class Rank(NamedTuple):
    samples: SampleSet
    rank: int  # from 1


class _Bounds(NamedTuple):
    """The sample is above `low` and at most `high`."""

    low: int
    high: int


def list_ranks(count: int, undelivered: int, shares: Iterable[Share]) -> Iterator[int]:
    """Return the ranks of all shares that exist, with and without undelivered messages."""
    for numerator, denominator in shares if count else ():
        yield rank_of(count, numerator, denominator)
        owed = rank_of(count + undelivered, numerator, denominator)
        if undelivered and owed <= count:
            yield owed


def rank_of(count: int, numerator: int, denominator: int) -> int:
    return -(-count * numerator // denominator)


def find_samples(ranks: Mapping[Rank, LatencySummary], count: Counter) -> dict[Rank, int]:
    """Return the sample of each rank, given the summary of the samples that it belongs to."""
    bounds = {
        rank: _Bounds(summary.lowest_us - 1, summary.highest_us) for rank, summary in ranks.items()
    }
    while still_open := [rank for rank, own in bounds.items() if own.high - own.low > 1]:
        asked: dict[tuple[SampleSet, _Bounds], list[Rank]] = defaultdict(list)
        for rank in still_open:
            asked[rank.samples, bounds[rank]].append(rank)
        listed = list(asked.items())
        for start in range(0, len(listed), MOST_QUESTIONS):
            some = listed[start : start + MOST_QUESTIONS]
            questions = [
                Question(*samples, choose_edges(*own), tuple(each.rank for each in wanted))
                for (samples, own), wanted in some
            ]
            places = count(questions)
            for question, (_, wanted), found in zip(questions, some, places, strict=True):
                for rank, place in zip(wanted, found.tolist(), strict=True):
                    bounds[rank] = _narrow(bounds[rank], question.edges, place)
    return {rank: own.high for rank, own in bounds.items()}


def choose_edges(low: int, high: int) -> tuple[int, ...]:
    """Return at most 255 values between both, about equally far apart."""
    span = high - low
    if span <= PARTS:
        return tuple(range(low + 1, high))
    return tuple(low + span * part // PARTS for part in range(1, PARTS))


def _narrow(own: _Bounds, edges: Sequence[int], place: int) -> _Bounds:
    """Return the bounds between an edge, the first that has enough samples, and the one before."""
    low = edges[place - 1] if place else own.low
    return _Bounds(low, edges[place] if place < len(edges) else own.high)


def statistics(
    summary: LatencySummary | None,
    sample_of: Callable[[int], int],
    *,
    undelivered: int = 0,
    skew_us: tuple[int, int] | None = (0, 0),
) -> Latency:
    """Return the exact statistics of samples, given the sample of each rank.

    Messages that were owed and not delivered rank above all samples; a rank among them is None.
    """
    if summary is None:
        return Latency(undelivered=undelivered, skew_us=skew_us)
    owed: dict[str, int | None] = {}
    for name, numerator, denominator in PERCENTILES if undelivered else ():
        rank = rank_of(summary.size + undelivered, numerator, denominator)
        owed[name] = sample_of(rank) if rank <= summary.size else None
    return Latency(
        count=summary.size,
        negative=summary.negative,
        mean=summary.total_us / summary.size,
        max=summary.highest_us,
        percentiles={
            name: sample_of(rank_of(summary.size, numerator, denominator))
            for name, numerator, denominator in PERCENTILES
        },
        undelivered=undelivered,
        percentiles_owed=owed,
        skew_us=skew_us,
    )
