"""Finds where the records read from a source diverge from its leader's log; pure.

One leader writes all records of a leader epoch, so two logs that both have an epoch have the same
records in it, up to the shorter end. They diverge at the end of the largest epoch that both have
(KIP-101, KIP-320). Comparing only the position with the end of the last epoch is not enough: a
longer replica that has never seen that epoch may be elected. So the epochs of all records that were
read are kept, up to a limit.

Rules:
- `ReadEpochs` has for each epoch the offset of the first batch that was read in it. A partition
  that is rewound and reads again replaces the epochs above.
- `judge` compares one OffsetForLeaderEpoch response with what was read. The result is: no
  divergence, another epoch to ask for, or the offset from which the leader has other records.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Per partition; older epochs are dropped.
MOST_EPOCHS: Final = 32


class EpochStart(NamedTuple):
    """The first offset that was read in an epoch."""

    epoch: int
    offset: int


class LeaderEpochEnd(NamedTuple):
    """A leader's answer: its largest epoch not above the requested one, and where it ends."""

    epoch: int
    end_offset: int


class Judgement(NamedTuple):
    """The result of one comparison; no field is set if the leader has all records read."""

    diverged_at: int | None = None
    ask_next: int | None = None


SAME: Final = Judgement()


class ReadEpochs:
    """The leader epochs of the records read from one partition."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = [EpochStart(*each) for each in starts]

    def note(self, epoch: int, offset: int) -> None:
        """Record that a batch of this epoch was read at this offset."""
        if epoch < 0:
            return  # written by a broker without leader epochs
        starts = self._starts
        while starts and starts[-1].offset >= offset:
            starts.pop()
        if not starts or starts[-1].epoch != epoch:
            starts.append(EpochStart(epoch, offset))
            del starts[:-MOST_EPOCHS]

    def below(self, position: int) -> tuple[EpochStart, ...]:
        """The epochs of the records below a position."""
        return tuple(each for each in self._starts if each.offset <= position)

    @property
    def newest(self) -> EpochStart | None:
        return self._starts[-1] if self._starts else None

    def latest(self, position: int) -> int:
        """The epoch of the last record below a position; -1 if unknown."""
        known = self.below(position)
        return known[-1].epoch if known else -1


def truncate_epochs(starts: Iterable[tuple[int, int]], offset: int) -> tuple[EpochStart, ...]:
    """Drop the epochs at and above the offset at which the logs diverged."""
    return tuple(EpochStart(*each) for each in starts if each[1] < offset)


def judge(
    read: Sequence[EpochStart], position: int, asked_epoch: int, answer: LeaderEpochEnd
) -> Judgement:
    """Compare a leader's answer with the records read below a position."""
    known = [each for each in read if each.epoch <= answer.epoch]
    if not known:
        return _judge_offset(min(answer.end_offset, read[0].offset), position)
    last = known[-1]
    if last.epoch != answer.epoch:
        return Judgement(ask_next=last.epoch)
    is_newest = answer.epoch == asked_epoch == read[-1].epoch
    own_end = position if is_newest else _end_of(read, last.epoch, position)
    return _judge_offset(min(answer.end_offset, own_end), position)


def judge_unknown(read: Sequence[EpochStart], position: int, log_end: int) -> Judgement:
    """As `judge`, for a leader that has no epoch as large as those that were read."""
    if log_end >= position:
        return SAME
    return _judge_offset(min(log_end, read[0].offset), position)


def _judge_offset(offset: int, position: int) -> Judgement:
    return SAME if offset >= position else Judgement(diverged_at=max(0, offset))


def _end_of(read: Sequence[EpochStart], epoch: int, position: int) -> int:
    """The end offset of the records read in an epoch."""
    return min((each.offset for each in read if each.epoch > epoch), default=position)
