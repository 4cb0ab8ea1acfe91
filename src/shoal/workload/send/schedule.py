"""When each message is due: an open loop, which slow answers do not delay.

Rules:
- Pure: times go in and come out, in whole microseconds; nothing sleeps here.
- Message `n` of a steady schedule is due at `start + ceil(n * 1e6 / rate)`. So the number
  that is due by a time never exceeds what the rate allows since the start. A producer that falls
  behind may catch up with the schedule, but not overtake it.
- `due` and `due_times_us` agree exactly: n < due(t) if and only if due_times_us(n) <= t.
  All arithmetic is in integers, so that they agree after a year, too.
- Other shapes never exceed the rate either: bursts with pauses between them, and a ramp that rises
  to the rate in small steps and stays there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from shoal.model.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Longs = np.ndarray[Any, np.dtype[np.int64]]

# Rates are kept to a thousandth of a message per second. With at most five million per
# second the product of a thousandfold rate and 1e9 stays below 2^63.
_MILLI = 1000
_US_PER_S = 1_000_000
HIGHEST_RATE_PER_S = 5_000_000
# One message, in the unit of `work`: thousandths of a message per second times microseconds.
_WORK = _US_PER_S * _MILLI
_MOST_BY_COLUMNS = (1 << 63) // _WORK - 1
_RAMP_STEPS = 100


class Schedule(Protocol):
    """When each message of one producer to one topic is due."""

    def due(self, now_us: int) -> int:
        """How many messages are due by now, including this microsecond."""

    def due_time_us(self, number: int) -> int:
        """When that message is due."""

    def due_times_us(self, numbers: "Longs") -> "Longs":
        """When each of these messages is due."""


@dataclass(frozen=True)
class SteadySchedule:
    """The same number of messages in every second, evenly spread."""

    start_us: int
    rate_milli_per_s: int

    @classmethod
    def at_rate(cls, start_us: int, rate_per_s: float) -> "SteadySchedule":
        return cls(start_us, milli_rate(rate_per_s))

    def due(self, now_us: int) -> int:
        elapsed_us = now_us - self.start_us
        if elapsed_us < 0:
            return 0
        return elapsed_us * self.rate_milli_per_s // _WORK + 1

    def due_time_us(self, number: int) -> int:
        return self.start_us - (-number * _WORK // self.rate_milli_per_s)

    def due_times_us(self, numbers: "Longs") -> "Longs":
        # Whole cycles are split off first, to avoid an overflow.
        cycles = numbers // self.rate_milli_per_s
        rest = numbers - cycles * self.rate_milli_per_s
        return self.start_us + cycles * _WORK - (-rest * _WORK // self.rate_milli_per_s)


def milli_rate(rate_per_s: float) -> int:
    """A rate in thousandths of a message per second; raises if it is out of range."""
    milli = int(Fraction(rate_per_s) * _MILLI)
    if not 1 <= milli <= HIGHEST_RATE_PER_S * _MILLI:
        raise UsageError(
            f"a rate of {rate_per_s} messages per second is out of range",
            remedy=f"use 0.001 to {HIGHEST_RATE_PER_S}",
        )
    return milli


class ShapedSchedule:
    """Pieces of time with a rate each: repeated, or once, after which the last rate stays.

    Message `n` is due as soon as the work done (the rate summed up over time) is `n` messages.
    """

    def __init__(
        self, start_us: int, pieces: Sequence[tuple[int, int]], *, repeats: bool = False
    ) -> None:
        """Pieces are (length in µs, rate in thousandths); the length of the last one is used only
        if they repeat."""
        self.start_us = start_us
        self._repeats = repeats
        self._rates = [rate for _, rate in pieces]
        self._starts = list(accumulate((length for length, _ in pieces), initial=0))
        # The work done at the start of each piece.
        self._works = list(accumulate((length * rate for length, rate in pieces), initial=0))
        self._length_us, self._cycle_work = self._starts.pop(), self._works.pop()

    def due(self, now_us: int) -> int:
        elapsed_us = now_us - self.start_us
        if elapsed_us < 0:
            return 0
        cycles, within_us = (
            divmod(elapsed_us, self._length_us) if self._repeats else (0, elapsed_us)
        )
        place = bisect_right(self._starts, within_us) - 1
        done = self._works[place] + (within_us - self._starts[place]) * self._rates[place]
        return (cycles * self._cycle_work + done) // _WORK + 1

    def due_time_us(self, number: int) -> int:
        work = number * _WORK
        cycles = max(-(-work // self._cycle_work) - 1, 0) if self._repeats else 0
        left = work - cycles * self._cycle_work
        # The piece in which that work is reached: the last one that starts with less.
        place = max(bisect_left(self._works, left) - 1, 0)
        within_us = -((self._works[place] - left) // self._rates[place])
        return self.start_us + cycles * self._length_us + self._starts[place] + within_us

    def due_times_us(self, numbers: "Longs") -> "Longs":
        import numpy as np

        if len(numbers) and int(numbers.max()) > _MOST_BY_COLUMNS:
            return np.array([self.due_time_us(int(number)) for number in numbers], np.int64)
        work = numbers * _WORK
        cycles = np.maximum(-(-work // self._cycle_work) - 1, 0) if self._repeats else 0
        left = work - cycles * self._cycle_work
        works, rates = np.array(self._works), np.array(self._rates)
        place = np.maximum(np.searchsorted(works, left, side="left") - 1, 0)
        within_us = -((works[place] - left) // rates[place])
        start_us = self.start_us + np.array(self._starts)[place]
        return np.asarray(start_us + cycles * self._length_us + within_us, np.int64)


def burst_schedule(
    start_us: int, rate_per_s: float, *, burst_s: float, pause_s: float
) -> ShapedSchedule:
    """The rate for `burst_s`, then nothing for `pause_s`, repeated."""
    milli = milli_rate(rate_per_s)
    lengths_us = (int(burst_s * _US_PER_S), int(pause_s * _US_PER_S))
    if min(lengths_us) < 1 or lengths_us[0] * milli < _WORK:
        raise UsageError(
            f"bursts of {burst_s:g} s with pauses of {pause_s:g} s are not possible at this rate",
            remedy="use bursts with at least one message, and pauses above 0",
        )
    return ShapedSchedule(start_us, [(lengths_us[0], milli), (lengths_us[1], 0)], repeats=True)


def ramp_schedule(
    start_us: int, rate_per_s: float, *, from_per_s: float, ramp_s: float
) -> ShapedSchedule:
    """From one rate to the other in a hundred steps, and then steady."""
    low, high = milli_rate(from_per_s), milli_rate(rate_per_s)
    step_us = int(ramp_s * _US_PER_S) // _RAMP_STEPS
    if step_us < 1 or low > high:
        raise UsageError(
            f"cannot ramp from {from_per_s:g} to {rate_per_s:g} messages/s in {ramp_s:g} s",
            remedy="use a rising ramp of at least a millisecond",
        )
    steps = [(step_us, low + (high - low) * step // _RAMP_STEPS) for step in range(_RAMP_STEPS)]
    return ShapedSchedule(start_us, [*steps, (step_us, high)])
