"""Counts the batches of the messages that a group received: the samples of the bound per batch.

Ledgers do not record the batch of a message. Neighbours of a stream that were sent at the same
time, or acknowledged at the same time, count as one batch: the driver `raw` sends and acknowledges
whole batches. If several lanes share a source partition, a batch spans lanes, so only the lane with
the most batches counts. The driver `confluent` leaves batching to librdkafka, so there one batch
may consist of several such sets (see docs/reference/results.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ends_of_groups, starts_of_groups
from shoal.audit.context import AuditContext, Stream


def batch_rows(stream: Ints, times: tuple[Ints, Ints], low: int) -> Ints:
    """Return rows of `BatchColumn` for messages in the order of streams and sequences.

    `times` are the send times and the acknowledgement times.
    """
    sent, acked = times
    starts, ends = starts_of_groups(stream), ends_of_groups(stream)
    begins = ~_is_together((sent[:-1], acked[:-1]), (sent[1:], acked[1:]))
    begins &= stream[1:] == stream[:-1]
    begun = np.bincount(stream[1:][begins], minlength=int(stream[-1]) + 1 if len(stream) else 0)
    columns = [stream[starts], np.full(len(starts), low), begun[stream[starts]]]
    return np.column_stack([*columns, sent[starts], acked[starts], sent[ends], acked[ends]])


def _is_together(before: tuple[Ints, Ints], after: tuple[Ints, Ints]) -> Bools:
    pairs = zip(before, after, strict=True)
    same = [(first == second) & (first != NONE) for first, second in pairs]
    together: Bools = same[0] | same[1]
    return together


class StreamBatches(NamedTuple):
    """A row of `BatchColumn` without the stream."""

    low: int
    begun: int
    first_sent: int
    first_acked: int
    last_sent: int
    last_acked: int


def count_batches(rows: Mapping[Stream, Iterable[StreamBatches]], context: AuditContext) -> int:
    """Count all batches, from the rows of all cells."""
    by_partition: dict[tuple[str, ...], int] = defaultdict(int)
    for stream, own in rows.items():
        partition = str(context.partition_for("source", stream))
        key = (*(str(part) for part in stream._replace(lane=0)), partition)
        by_partition[key] = max(by_partition[key], _count(sorted(own)))
    return sum(by_partition.values())


def _count(rows: list[StreamBatches]) -> int:
    """Count the batches of one stream: the first, those that begin in cells and between cells."""
    count = 1 + sum(row.begun for row in rows)
    for before, after in pairwise(rows):
        is_sent_together = before.last_sent == after.first_sent != NONE
        count += not (is_sent_together or before.last_acked == after.first_acked != NONE)
    return count
