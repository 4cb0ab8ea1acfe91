"""Where a scan shows that a message is not in a log.

Rules, in the words of the definitions:
- Scans are made after the producers' last answer. So a scan of the source decides every
  acknowledged message: an acknowledged offset at or above the scan's end is absent.
- Of every other message, and of the target, an offset at or above the end of a scan is absent
  only once the lane was drained: before that the scan may have come early.
- Below the start of a scan nothing is shown: what was there was deleted, wherever it stood.
"""

from collections.abc import Callable

import numpy as np

from shoal.audit.arrays import LARGEST, Bools, Ints
from shoal.audit.context import Cluster, Setting, Stream
from shoal.audit.read.evidence import offset_of, partition_of


def is_shown_absent(
    setting: Setting,
    cluster: Cluster,
    found: tuple[list[Stream], Ints, Ints],
    *,
    acknowledged: Bools,
    is_drained: Callable[[Stream], bool],
) -> Bools:
    """Whether scans would show these messages if they were still at these places.

    `found` is the streams of a cell, and the number of the stream and the place of each message,
    none of which is in a scan of the cluster.
    """
    streams, stream, places = found
    if not len(places) or not setting.has_scans_of(cluster):
        return np.zeros(len(places), dtype=np.bool_)
    partition = partition_of(places)
    span = int(partition.max()) + 1
    packed, inverse = np.unique(stream * span + partition, return_inverse=True)
    bounds = np.empty((len(packed), 3), dtype=np.int64)
    for row, pair in enumerate(packed.tolist()):
        own = streams[pair // span]
        start, end = setting.scans.get((cluster, own.topic, pair % span), (LARGEST, 0))
        bounds[row] = start, end, is_drained(own)
    start, end, drained = bounds[inverse].T
    decided = drained != 0
    if cluster == "source":
        decided |= acknowledged
    offset = offset_of(places)
    absent: Bools = (offset >= start) & ((offset < end) | decided)
    return absent
