"""Counts the batches of the messages that a group received: the samples of the bound per batch.

Ledgers do not record the batch of a message. Neighbours of a stream that were sent at the same
time, or acknowledged at the same time, count as one batch: the driver `raw` sends and acknowledges
whole batches. If several lanes share a source partition, a batch spans lanes, so only the lane with
the most batches counts. The driver `confluent` leaves batching to librdkafka, so there one batch
may consist of several such sets (see docs/reference/limits.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ends_of_groups, starts_of_groups
from shoal.audit.context import AuditContext, Stream

# For each stream in a cell: the first sequence of the cell, how many batches begin after the first
# message of the stream in it, and the times of its first and of its last message.
BATCHES = ("stream", "low", "begun", "first_sent", "first_acked", "last_sent", "last_acked")


def batch_rows(stream: Ints, times: tuple[Ints, Ints], low: int) -> Ints:
    """Return rows of `BATCHES` for messages in the order of streams and sequences.

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


def count_batches(rows: Mapping[Stream, Iterable[list[int]]], context: AuditContext) -> int:
    """Count all batches, from the rows of all cells (without their streams)."""
    by_partition: dict[tuple[str, ...], int] = defaultdict(int)
    for stream, own in rows.items():
        partition = str(context.partition_for("source", stream))
        key = (*(str(part) for part in stream._replace(lane=0)), partition)
        by_partition[key] = max(by_partition[key], _count(sorted(own)))
    return sum(by_partition.values())


def _count(rows: list[list[int]]) -> int:
    """Count the batches of one stream: the first, those that begin in cells and between cells."""
    count = 1 + sum(begun for _low, begun, *_times in rows)
    for before, after in pairwise(rows):
        last, first = before[4:6], after[2:4]
        count += not any(a == b != NONE for a, b in zip(last, first, strict=True))
    return count
