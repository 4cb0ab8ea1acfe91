"""Where what was read parts from a leader's log, by leader epochs."""

from collections.abc import Sequence

import pytest

from shoal.mirror.watch.divergence import (
    MOST_EPOCHS,
    SAME,
    EpochStart,
    Judgement,
    LeaderEpochEnd,
    ReadEpochs,
    judge,
    judge_unknown,
    truncate_epochs,
)

ONE = [(0, 0)]
TWO = [(0, 0), (3, 50)]
# Epoch 2 is missing: nothing was written in it.
THREE = [(0, 0), (1, 40), (3, 60)]


@pytest.mark.parametrize(
    ("read", "position", "asked", "answer", "expected"),
    [
        pytest.param(ONE, 100, 0, (0, 100), SAME, id="nothing was lost"),
        pytest.param(ONE, 100, 0, (0, 250), SAME, id="the leader is ahead"),
        pytest.param(ONE, 100, 0, (0, 70), Judgement(70), id="the epoch ends below the position"),
        pytest.param(ONE, 100, 0, (0, 0), Judgement(0), id="all is gone"),
        pytest.param(TWO, 60, 3, (3, 60), SAME, id="two epochs, both there"),
        pytest.param(TWO, 60, 3, (0, 45), Judgement(45), id="the last epoch never was"),
        pytest.param(
            TWO, 60, 3, (0, 100), Judgement(50), id="a longer replica without our last epoch"
        ),
        pytest.param(THREE, 90, 3, (2, 65), Judgement(ask_next=1), id="an epoch we never read"),
        pytest.param(THREE, 90, 1, (1, 55), Judgement(55), id="and where the common one ends"),
        pytest.param(THREE, 90, 1, (1, 80), Judgement(60), id="at the latest where ours ended"),
        pytest.param(THREE, 90, 1, (0, 30), Judgement(30), id="asked twice"),
        pytest.param([(5, 70)], 90, 5, (2, 80), Judgement(70), id="read from the middle"),
        pytest.param([(5, 90)], 90, 5, (2, 95), SAME, id="an old checkpoint, nothing known"),
        pytest.param([(5, 90)], 90, 5, (2, 80), Judgement(80), id="an old checkpoint, shorter"),
        pytest.param(ONE, 100, 0, (0, 200), SAME, id="retention deleted the epoch above us"),
    ],
)
def test_an_answer_is_compared_with_all_that_was_read(
    read: Sequence[tuple[int, int]],
    position: int,
    asked: int,
    answer: tuple[int, int],
    expected: Judgement,
) -> None:
    starts = ReadEpochs(read).below(position)
    assert judge(starts, position, asked, LeaderEpochEnd(*answer)) == expected


@pytest.mark.parametrize(("end", "expected"), [(100, SAME), (99, Judgement(0)), (0, Judgement(0))])
def test_a_leader_without_our_epochs_is_judged_by_its_end(end: int, expected: Judgement) -> None:
    assert judge_unknown(ReadEpochs(ONE).below(100), 100, end) == expected


def test_what_is_read_again_replaces_what_was_read_above() -> None:
    epochs = ReadEpochs()
    for epoch, offset in [(0, 0), (0, 20), (2, 40), (2, 60), (-1, 70)]:
        epochs.note(epoch, offset)
    assert epochs.below(80) == (EpochStart(0, 0), EpochStart(2, 40))
    assert (epochs.latest(80), epochs.latest(30), ReadEpochs().latest(5)) == (2, 0, -1)
    epochs.note(5, 30)
    assert epochs.below(80) == (EpochStart(0, 0), EpochStart(5, 30))
    assert truncate_epochs([(0, 0), (5, 30)], 30) == (EpochStart(0, 0),)


def test_few_epochs_are_kept() -> None:
    epochs = ReadEpochs()
    for number in range(100):
        epochs.note(number, number * 10)
    assert len(epochs.below(10_000)) == MOST_EPOCHS
    assert epochs.latest(10_000) == 99
