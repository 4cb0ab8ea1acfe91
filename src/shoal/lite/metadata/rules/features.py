"""Features that a cluster agrees on (KIP-584): what brokers can do, and up to which level they do.

Levels stand in the metadata log, as settings of the kind `feature`; a feature that has none
there is at its default.
"""

from collections.abc import Mapping
from typing import NamedTuple

FEATURE = "feature"
TRANSACTION_VERSION = "transaction.version"
COMPARE_AND_APPEND = "shoal.compare-and-append"


class Feature(NamedTuple):
    """The levels that this version of shoal can do."""

    least: int
    most: int
    default: int


FEATURES = {
    # 0: the first protocol of transactions; 1: flexible records; 2: the second (KIP-890).
    TRANSACTION_VERSION: Feature(0, 2, 2),
    # 1: mirrors may write at their source's offsets; ordinary clients never ask for it.
    COMPARE_AND_APPEND: Feature(0, 1, 1),
}


def levels(finalized: Mapping[str, str]) -> dict[str, int]:
    """The level of every feature, by what the metadata says."""
    return {name: int(finalized.get(name, feature.default)) for name, feature in FEATURES.items()}
