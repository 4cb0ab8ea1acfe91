"""Where two logs part ways, told by leader epochs.

One leader wrote all records of an epoch, in order, so two logs that have the same epoch have
the same records in it, up to the shorter end. Logs part at the end of the largest epoch that
both have.
"""

from bisect import bisect_right

from shoal.lite.base.codes import Code, Refused
from shoal.lite.replication.messages import EpochEnd, Log
from shoal.lite.storage.state.epochs import NO_EPOCH, EpochHistory


def end_of_epoch(history: EpochHistory, epoch: int, log_end: int) -> EpochEnd | None:
    """The largest epoch not above `epoch` and where it ends; None if that cannot be told.

    An epoch below all that are known ends where those begin, at the latest: its records are
    deleted, and who still has them must begin again at the log's start.
    """
    if epoch == NO_EPOCH:
        return None
    if epoch == history.latest:
        return EpochEnd(epoch, log_end)
    entries = history.entries
    place = bisect_right(entries, epoch, key=lambda entry: entry[0])
    if place == len(entries):
        return None
    return EpochEnd(entries[place - 1][0] if place else epoch, entries[place][1])


def check_epoch(known_epoch: int, leader_epoch: int) -> None:
    """Refuse those whose idea of the leader is older or newer than ours (KIP-320)."""
    if known_epoch in (NO_EPOCH, leader_epoch):
        return
    if known_epoch < leader_epoch:
        raise Refused(Code.FENCED_LEADER_EPOCH, f"the leader epoch {known_epoch} is over")
    raise Refused(Code.UNKNOWN_LEADER_EPOCH, f"the leader epoch {known_epoch} is not known")


def divergence(log: Log, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Where the log of one who reads at `offset` parts from ours; None if he may read on.

    `Refused` if the offset is out of range. The rules are for followers and consumers alike,
    and hold for reads from leaders and followers.
    """
    if last_fetched_epoch == log.epochs.latest and log.start_offset <= offset <= log.end_offset:
        return None  # nearly always
    found = None
    if last_fetched_epoch != NO_EPOCH:
        found = end_of_epoch(log.epochs, last_fetched_epoch, log.end_offset)
        if found is None:
            message = f"the epoch {last_fetched_epoch} is not known here"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, message)
    if offset < log.start_offset:
        raise _out_of_range(log, offset)
    if found is not None and (found.epoch < last_fetched_epoch or found.end_offset < offset):
        return found
    if offset > log.end_offset:
        raise _out_of_range(log, offset)
    return None


def is_incomparable(log: Log, offset: int, last_fetched_epoch: int) -> bool:
    """Whether one who reads on here may have parted from this log below its start, untold.

    That is so for who begins at the start with records of an epoch below all that are known.
    """
    return (
        offset == log.start_offset > 0 and NO_EPOCH < last_fetched_epoch < log.epochs.entries[0][0]
    )


def truncation_point(log: Log, diverging: EpochEnd) -> int:
    """Where a follower must cut its log that parts from the leader's in this way (KIP-279).

    If the follower has no records of that epoch, it cuts everything behind the epochs below
    and asks again: several short terms may have left different tails.
    """
    end_offset = log.end_offset
    own = end_of_epoch(log.epochs, diverging.epoch, end_offset)
    if own is None:
        return min(diverging.end_offset, end_offset)
    if own.epoch != diverging.epoch:
        return min(own.end_offset, end_offset)
    return min(own.end_offset, diverging.end_offset, end_offset)


def _out_of_range(log: Log, offset: int) -> Refused:
    message = f"offset {offset} is not in {log.start_offset} to {log.end_offset}"
    return Refused(Code.OFFSET_OUT_OF_RANGE, message)
