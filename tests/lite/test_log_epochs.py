"""Leader epochs: which term wrote which offset."""

import pytest

from shoal.lite.storage.files import DamagedFile, decode_checkpoint, encode_checkpoint
from shoal.lite.storage.state.epochs import NO_EPOCH, EpochHistory


def test_each_offset_belongs_to_the_epoch_that_wrote_it() -> None:
    history = EpochHistory([(0, 0), (2, 10), (5, 30)])
    assert [history.epoch_of(offset) for offset in (0, 9, 10, 29, 30, 99)] == [0, 0, 2, 2, 5, 5]
    assert history.latest == 5
    assert EpochHistory().epoch_of(3) == NO_EPOCH


def test_an_epoch_that_wrote_nothing_gives_way() -> None:
    history = EpochHistory([(0, 0), (1, 10)])
    assert history.assign(2, 10)
    assert history.entries == ((0, 0), (2, 10))
    assert not history.assign(1, 12)
    assert not history.assign(2, 12)


def test_cuts_at_both_ends() -> None:
    history = EpochHistory([(0, 0), (2, 10), (5, 30), (6, 40)])
    assert history.truncate_from_end(40)
    assert not history.truncate_from_end(40)
    assert list(history.entries) == [(0, 0), (2, 10), (5, 30)]
    assert not history.truncate_from_start(12)
    # The epoch that holds the start, from its true begin, and the one before it.
    assert history.truncate_from_start(30)
    assert list(history.entries) == [(2, 10), (5, 30)]
    assert not history.truncate_from_start(99)
    assert list(history.entries) == [(2, 10), (5, 30)]


def test_checkpoints_are_kafkas_text() -> None:
    text = encode_checkpoint([(0, 0), (2, 10)])
    assert text == b"0\n2\n0 0\n2 10\n"
    assert decode_checkpoint(text, source="x") == [(0, 0), (2, 10)]


@pytest.mark.parametrize("text", [b"", b"0\n", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 x\n", b"\xff"])
def test_damaged_checkpoints_are_named(text: bytes) -> None:
    with pytest.raises(DamagedFile, match="the file"):
        decode_checkpoint(text, source="the file")
