"""Finds where two logs diverge, by leader epochs.

One leader wrote all records of an epoch, in order. So two logs that contain the same epoch contain
the same records of it, up to the shorter end. Logs diverge at the end of the largest epoch that
both contain.
"""

from bisect import bisect_right

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.messages import EpochEndOffset, ReplicatedLog
from shoal.lite.storage.state.epochs import NO_EPOCH, EpochHistory


def end_of_epoch(history: EpochHistory, epoch: int, log_end: int) -> EpochEndOffset | None:
    """Return the largest epoch not above `epoch` and where it ends; None if that is unknown.

    An epoch below all known ones ends where those start, at the latest: its records are deleted
    here, and a replica that still has them must restart its log at the log start offset.
    """
    if epoch == NO_EPOCH:
        return None
    if epoch == history.latest:
        return EpochEndOffset(epoch, log_end)
    entries = history.entries
    place = bisect_right(entries, epoch, key=lambda entry: entry[0])
    if place == len(entries):
        return None
    return EpochEndOffset(entries[place - 1][0] if place else epoch, entries[place][1])


def check_epoch(known_epoch: int, leader_epoch: int) -> None:
    """Raise `ApiError` if a reader's leader epoch is older or newer than this one (KIP-320)."""
    if known_epoch in (NO_EPOCH, leader_epoch):
        return
    if known_epoch < leader_epoch:
        raise ApiError(Code.FENCED_LEADER_EPOCH, f"leader epoch {known_epoch} has ended")
    raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"leader epoch {known_epoch} is unknown")


def divergence(log: ReplicatedLog, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
    """Return where a reader's log diverges from this one; None if it may read at `offset`.

    Raise `ApiError` if the offset is out of range. The rules apply to followers and consumers,
    and to reads from leaders and followers.
    """
    if last_fetched_epoch == log.epochs.latest and log.start_offset <= offset <= log.end_offset:
        return None  # nearly always
    found = None
    if last_fetched_epoch != NO_EPOCH:
        found = end_of_epoch(log.epochs, last_fetched_epoch, log.end_offset)
        if found is None:
            message = f"leader epoch {last_fetched_epoch} is unknown"
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, message)
    if offset < log.start_offset:
        raise _out_of_range(log, offset)
    if found is not None and (found.epoch < last_fetched_epoch or found.end_offset < offset):
        return found
    if offset > log.end_offset:
        raise _out_of_range(log, offset)
    return None


def is_incomparable(log: ReplicatedLog, offset: int, last_fetched_epoch: int) -> bool:
    """Return whether a reader may diverge from this log below its start, undetectably.

    That is possible if it reads at the log start offset and its last record is of an epoch below
    all known ones.
    """
    return (
        offset == log.start_offset > 0 and NO_EPOCH < last_fetched_epoch < log.epochs.entries[0][0]
    )


def truncation_point(log: ReplicatedLog, diverging: EpochEndOffset) -> int:
    """Return the offset to which a follower must truncate its diverging log (KIP-279).

    If the follower has no records of that epoch, it truncates to the end of the lower epochs and
    fetches again: several short terms may have left different tails.
    """
    end_offset = log.end_offset
    own = end_of_epoch(log.epochs, diverging.epoch, end_offset)
    if own is None:
        return min(diverging.end_offset, end_offset)
    if own.epoch != diverging.epoch:
        return min(own.end_offset, end_offset)
    return min(own.end_offset, diverging.end_offset, end_offset)


def _out_of_range(log: ReplicatedLog, offset: int) -> ApiError:
    message = f"offset {offset} is not in the range {log.start_offset} to {log.end_offset}"
    return ApiError(Code.OFFSET_OUT_OF_RANGE, message)
