"""When each message should leave: an open loop, which no slow answer can hold back.

Rules:
- Pure: times go in and come out, in whole microseconds; nobody sleeps here.
- Message `n` of a steady schedule is due at `start + ceil(n * 1e6 / rate)`. So the number
  that is due by a time never exceeds what the rate allows since the start: never above the
  rate. Whoever falls behind may catch up to the schedule, never pass it.
- `due` and `intended_us` agree exactly: n < due(t) if and only if intended_us(n) <= t.
  All arithmetic is in integers, so that they agree after a year, too.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from shoal.model.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Longs = np.ndarray[Any, np.dtype[np.int64]]

# Rates are kept to a thousandth of a message per second. With at most five million per
# second the product of a thousandfold rate and 1e9 stays below 2^63.
_MILLI = 1000
_US_PER_S = 1_000_000
HIGHEST_RATE_PER_S = 5_000_000


@dataclass(frozen=True)
class SteadySchedule:
    """The same number of messages in every second, evenly spread."""

    start_us: int
    rate_milli_per_s: int

    @classmethod
    def at_rate(cls, start_us: int, rate_per_s: float) -> "SteadySchedule":
        milli = int(Fraction(rate_per_s) * _MILLI)
        if not 1 <= milli <= HIGHEST_RATE_PER_S * _MILLI:
            raise UsageError(
                f"a rate of {rate_per_s} messages per second",
                remedy=f"use 0.001 to {HIGHEST_RATE_PER_S}",
            )
        return cls(start_us, milli)

    def due(self, now_us: int) -> int:
        """How many messages should have left by now, this very microsecond included."""
        elapsed_us = now_us - self.start_us
        if elapsed_us < 0:
            return 0
        return elapsed_us * self.rate_milli_per_s // (_US_PER_S * _MILLI) + 1

    def intended_at_us(self, number: int) -> int:
        """When that message should leave."""
        return self.start_us - (-number * _US_PER_S * _MILLI // self.rate_milli_per_s)

    def intended_us(self, numbers: "Longs") -> "Longs":
        """When each of these messages should leave; whole seconds first, against overflow."""
        cycles = numbers // self.rate_milli_per_s
        rest = numbers - cycles * self.rate_milli_per_s
        nanos = _US_PER_S * _MILLI
        return self.start_us + cycles * nanos - (-rest * nanos // self.rate_milli_per_s)
