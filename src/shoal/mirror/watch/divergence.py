"""Where the history that was read from a source parts from its leader's log; pure.

One leader writes all records of a leader epoch, so two logs that have an epoch have the same
records in it, up to the shorter end. They part at the end of the largest epoch that both have
(KIP-101, KIP-320). A consumer that only compares its position with the end of its last epoch is
deceived if a replica is elected that is longer and has never seen that epoch; so the epochs of
all that was read are kept, as far as they are few.

Rules:
- `ReadEpochs` has for each epoch the offset of the first batch that was read in it. A partition
  that goes back and reads again replaces what lies above.
- `judge` compares one answer of OffsetForLeaderEpoch with what was read: the same, another
  question, or the offset from which on the leader has other records.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Of a partition; older ones are forgotten.
MOST_EPOCHS: Final = 32


class EpochStart(NamedTuple):
    """The first offset that was read in an epoch."""

    epoch: int
    offset: int


class EpochEnd(NamedTuple):
    """What a leader answers: the largest epoch not above the asked one, and where it ends."""

    epoch: int
    end_offset: int


class Judgement(NamedTuple):
    """What one answer says; neither is set if the leader has all that was read."""

    diverged_at: int | None = None
    ask_next: int | None = None


SAME: Final = Judgement()


class ReadEpochs:
    """The leader epochs of what was read from one partition."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = [EpochStart(*each) for each in starts]

    def note(self, epoch: int, offset: int) -> None:
        """A batch of this epoch was read at this offset."""
        if epoch < 0:
            return  # written by a broker that has no epochs
        starts = self._starts
        while starts and starts[-1].offset >= offset:
            starts.pop()
        if not starts or starts[-1].epoch != epoch:
            starts.append(EpochStart(epoch, offset))
            del starts[:-MOST_EPOCHS]

    def below(self, position: int) -> tuple[EpochStart, ...]:
        """The epochs of what lies below a position."""
        return tuple(each for each in self._starts if each.offset <= position)

    def latest(self, position: int) -> int:
        """The epoch of the last record below a position; -1 if that is not known."""
        known = self.below(position)
        return known[-1].epoch if known else -1


def cut_epochs(starts: Iterable[tuple[int, int]], offset: int) -> tuple[EpochStart, ...]:
    """The epochs of what lies below an offset at which a history was given up."""
    return tuple(EpochStart(*each) for each in starts if each[1] < offset)


def judge(
    read: Sequence[EpochStart], position: int, asked_epoch: int, answer: EpochEnd
) -> Judgement:
    """What an answer says about what was read below a position."""
    known = [each for each in read if each.epoch <= answer.epoch]
    if not known:
        return _parted(min(answer.end_offset, read[0].offset), position)
    last = known[-1]
    if last.epoch != answer.epoch:
        return Judgement(ask_next=last.epoch)
    is_newest = answer.epoch == asked_epoch == read[-1].epoch
    own_end = position if is_newest else _end_of(read, last.epoch, position)
    return _parted(min(answer.end_offset, own_end), position)


def judge_unknown(read: Sequence[EpochStart], position: int, log_end: int) -> Judgement:
    """As `judge`, of a leader that knows no epoch as large as those that were read."""
    if log_end >= position:
        return SAME
    return _parted(min(log_end, read[0].offset), position)


def _parted(offset: int, position: int) -> Judgement:
    return SAME if offset >= position else Judgement(diverged_at=max(0, offset))


def _end_of(read: Sequence[EpochStart], epoch: int, position: int) -> int:
    """Where the records that were read in an epoch end."""
    return min((each.offset for each in read if each.epoch > epoch), default=position)
