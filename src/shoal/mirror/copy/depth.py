"""How deep a partition is copied: raw (batches as they are) or deep (records in new batches); pure.

Sending a batch costs the same for one record as for a thousand. So where batches are tiny it is
cheaper to join their records into larger ones, and where they are not, to pass them on unopened.
With `auto` each partition measures what arrives.

Rules:
- The mean size of the last batches decides, with two limits: small ones make a partition deep, and
  only clearly larger ones make it raw again, so that it does not change back and forth.
- The first batch of a partition decides how it begins.
- `auto` is raw where bytes are promised: compare-and-append, a handler of batches, raw bytes that
  are demanded by `use.raw.bytes` or its two sides (`shoal.mirror.config`).
"""

from dataclasses import dataclass
from typing import Final

AUTO_DEPTH: Final = "auto"
RAW: Final = "raw"
DEEP: Final = "deep"
DEPTHS: Final = (AUTO_DEPTH, RAW, DEEP)

# Below both a partition becomes deep, above one of them raw.
DEEP_BELOW_BYTES: Final = 1024
DEEP_BELOW_RECORDS: Final = 8
RAW_ABOVE_BYTES: Final = 2048
RAW_ABOVE_RECORDS: Final = 16
# How many batches the mean looks back on.
_MEMORY_BATCHES: Final = 64


@dataclass(slots=True)
class DepthGauge:
    """Decides the depth of one partition with `auto`."""

    is_deep: bool = False
    _mean_bytes: float = -1.0
    _mean_records: float = 0.0

    def note(self, batches: int, size_bytes: int, records: int) -> None:
        """Take into account so many batches, with bytes and records (or offsets) in total."""
        if not batches:
            return
        weight = 1.0 if self._mean_bytes < 0 else min(1.0, batches / _MEMORY_BATCHES)
        self._mean_bytes += (size_bytes / batches - self._mean_bytes) * weight
        self._mean_records += (records / batches - self._mean_records) * weight
        if self._mean_bytes > RAW_ABOVE_BYTES or self._mean_records > RAW_ABOVE_RECORDS:
            self.is_deep = False
        elif self._mean_bytes < DEEP_BELOW_BYTES and self._mean_records < DEEP_BELOW_RECORDS:
            self.is_deep = True

    @property
    def has_begun(self) -> bool:
        return self._mean_bytes >= 0
