"""Decides whether a scan shows that a message is absent from a log.

Rules, as in the definitions:
- Scans are made after the producers' last answer. So a scan of the source decides every
  acknowledged message: an acknowledged offset at or above the scan's end is absent.
- For every other message, and in the target, an offset at or above the end of a scan is absent only
  once the lane was drained: before that, the message may have been appended after the scan.
- Below the start of a scan nothing is shown absent: those messages were deleted.
"""

from collections.abc import Callable

import numpy as np

from shoal.audit.arrays import LARGEST, Bools, Ints
from shoal.audit.context import AuditContext, Cluster, Stream
from shoal.audit.read.evidence import offset_of, partition_of


def is_shown_absent(
    context: AuditContext,
    cluster: Cluster,
    found: tuple[list[Stream], Ints, Ints],
    *,
    acknowledged: Bools,
    is_drained: Callable[[Stream], bool],
) -> Bools:
    """Whether scans would show these messages if they were still at these places.

    `found` has the streams of a cell, then the stream number and the place of each message. None
    of these messages is in a scan of the cluster.
    """
    streams, stream, places = found
    if not len(places) or not context.has_scans_of(cluster):
        return np.zeros(len(places), dtype=np.bool_)
    partition = partition_of(places)
    span = int(partition.max()) + 1
    packed, inverse = np.unique(stream * span + partition, return_inverse=True)
    bounds = np.empty((len(packed), 3), dtype=np.int64)
    for row, pair in enumerate(packed.tolist()):
        own = streams[pair // span]
        start, end = context.scans.get((cluster, own.topic, pair % span), (LARGEST, 0))
        bounds[row] = start, end, is_drained(own)
    start, end, drained = bounds[inverse].T
    decided = drained != 0
    if cluster == "source":
        decided |= acknowledged
    offset = offset_of(places)
    absent: Bools = (offset >= start) & ((offset < end) | decided)
    return absent
