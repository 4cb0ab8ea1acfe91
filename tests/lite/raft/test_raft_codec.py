"""Entries and snapshots as bytes; kio judges the records that Apache Kafka defines."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.voters_record.v0.data import VotersRecord
from kio.serial import entity_reader

from shoal.lite.raft.model import EntryKind, RaftEntry, Voter, Voters
from shoal.lite.raft.storage.codec import (
    decode_entries,
    decode_snapshot,
    decode_voters,
    encode_entries,
    encode_leader_change,
    encode_snapshot,
    encode_voters,
)
from shoal.model.errors import WireError
from shoal.wire.batch import iter_batches
from shoal.wire.records.records import ControlType, decode_control, decode_records

VOTERS = Voters(
    [Voter(100, UUID(int=7), "host-a", 9093), Voter(102, UUID(int=9)), Voter(101, UUID(int=8))]
)
ENTRIES = (
    RaftEntry(1, (encode_leader_change(100, VOTERS, [100, 102]),), EntryKind.LEADER_CHANGE),
    RaftEntry(1, (b"one", b"", b"three")),
    RaftEntry(4, (encode_voters(VOTERS),), EntryKind.VOTERS),
    RaftEntry(4, (b"x" * 100_000,)),
)

records = st.lists(st.binary(max_size=30), min_size=1, max_size=4).map(tuple)
entries_of_any_kind = st.lists(
    st.builds(RaftEntry, st.integers(0, 2**31 - 1), records), min_size=1, max_size=5
)


@given(entries_of_any_kind, st.integers(0, 2**40))
def test_entries_come_back(entries: list[RaftEntry], base_offset: int) -> None:
    data = encode_entries(entries, base_offset)
    offset = base_offset
    for found_offset, entry in decode_entries(memoryview(data)):
        assert (found_offset, entry) == (offset, entries.pop(0))
        offset += entry.count
    assert not entries


def test_entries_of_the_quorum_are_control_batches_of_kafka() -> None:
    data = memoryview(encode_entries(ENTRIES, 5))
    assert [entry for _, entry in decode_entries(data)] == list(ENTRIES)
    kinds = [
        decode_control(decode_records(batch)[0]).type if batch.is_control else None
        for batch in iter_batches(data)
    ]
    assert kinds == [ControlType.LEADER_CHANGE, None, ControlType.KRAFT_VOTERS, None]


def test_kio_reads_our_leader_change() -> None:
    value = encode_leader_change(100, VOTERS, [102])
    message, size = entity_reader(LeaderChangeMessage)(memoryview(value), 0)
    assert size == len(value)
    assert message.leader_id == 100
    assert [v.voter_id for v in message.voters] == [100, 101, 102]
    assert [v.voter_id for v in message.granting_voters] == [102]


def test_kio_reads_our_voters() -> None:
    value = encode_voters(VOTERS)
    message, size = entity_reader(VotersRecord)(memoryview(value), 0)
    assert size == len(value)
    first = message.voters[0]
    assert (first.voter_id, first.voter_directory_id) == (100, UUID(int=7))
    assert (first.endpoints[0].host, first.endpoints[0].port) == ("host-a", 9093)
    assert decode_voters(value) == VOTERS


def test_snapshots_come_back() -> None:
    state = tuple(b"%d" % i for i in range(2500))
    content = decode_snapshot(encode_snapshot(VOTERS, state, 3))
    assert content == (VOTERS, state)
    assert decode_snapshot(encode_snapshot(VOTERS, (), 0)).records == ()


def test_a_cut_snapshot_is_refused() -> None:
    data = encode_snapshot(VOTERS, (b"a", b"b"), 3)
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode_snapshot(data[:length])


def test_damage_is_refused_and_nothing_worse() -> None:
    random = Random(1)
    snapshot = encode_snapshot(VOTERS, (b"a", b"b"), 3)
    value = encode_voters(VOTERS)
    refused = 0
    for _ in range(500):
        for whole, decode in ((snapshot, decode_snapshot), (value, decode_voters)):
            damaged = bytearray(whole)
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            try:
                decode(bytes(damaged))
            except WireError:
                refused += 1
    assert refused > 400
    with pytest.raises(WireError):
        decode_voters(encode_voters(Voters(())))


def test_a_batch_that_does_not_belong_into_the_log_is_refused() -> None:
    snapshot = encode_snapshot(VOTERS, (b"a",), 3)
    with pytest.raises(WireError, match="does not belong in the metadata log"):
        list(decode_entries(memoryview(snapshot)))
