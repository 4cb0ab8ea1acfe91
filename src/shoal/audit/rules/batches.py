"""How many batches the messages came in that a group received: the samples of a bound per batch.

Ledgers do not name the batch of a message. Neighbours of a stream that were sent at the same
time, or acknowledged at the same time, are taken as one batch: the driver `raw` sends and answers
whole batches. Where several lanes share a source partition a batch spans lanes, so of those
lanes the one with the most batches counts. The driver `confluent` leaves batching to librdkafka, so
there a batch may hold several such groups (see docs/gaps.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ends_of_groups, starts_of_groups
from shoal.audit.context import Setting, Stream

# Of each stream in a cell: the cell's first sequence, how many batches begin in it after its first
# message, and the times of its first and of its last message.
BATCHES = ("stream", "low", "begun", "first_sent", "first_acked", "last_sent", "last_acked")


def batch_rows(stream: Ints, times: tuple[Ints, Ints], low: int) -> Ints:
    """Rows of `BATCHES` for messages in the order of streams and sequences.

    `times` are those of sending and of acknowledgement.
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


def count_batches(rows: Mapping[Stream, Iterable[list[int]]], setting: Setting) -> int:
    """All batches, from the rows of all cells (without their streams)."""
    by_partition: dict[tuple[str, ...], int] = defaultdict(int)
    for stream, own in rows.items():
        partition = str(setting.home("source", stream))
        key = (*(str(part) for part in stream._replace(lane=0)), partition)
        by_partition[key] = max(by_partition[key], _count(sorted(own)))
    return sum(by_partition.values())


def _count(rows: list[list[int]]) -> int:
    """Batches of one stream: its first, those that begin within cells, and between two of them."""
    count = 1 + sum(begun for _low, begun, *_times in rows)
    for before, after in pairwise(rows):
        last, first = before[4:6], after[2:4]
        count += not any(a == b != NONE for a, b in zip(last, first, strict=True))
    return count
