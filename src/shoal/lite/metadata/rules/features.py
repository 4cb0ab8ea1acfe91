"""Features of a cluster (KIP-584): the supported and the finalized levels.

Finalized levels are in the metadata log, as settings of the kind `feature`; a feature without one
has its default level.
"""

from collections.abc import Mapping
from typing import NamedTuple

FEATURE = "feature"
TRANSACTION_VERSION = "transaction.version"
COMPARE_AND_APPEND = "shoal.compare-and-append"


class Feature(NamedTuple):
    """The levels that this version of shoal supports."""

    least: int
    most: int
    default: int


FEATURES = {
    # 0: the first protocol of transactions; 1: flexible records; 2: the second (KIP-890).
    TRANSACTION_VERSION: Feature(0, 2, 2),
    # 1: mirrors may write at their source's offsets; ordinary clients never use it.
    COMPARE_AND_APPEND: Feature(0, 1, 1),
}


def feature_levels(finalized: Mapping[str, str]) -> dict[str, int]:
    """The level of every feature, given the finalized ones."""
    return {name: int(finalized.get(name, feature.default)) for name, feature in FEATURES.items()}
