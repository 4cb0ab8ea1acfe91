"""Committed offsets: by their records, by transactions, and until they expire."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from shoal.lite.coordinator.groups.group import (
    CONSUMER,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from shoal.lite.coordinator.groups.messages import GroupProtocol
from shoal.lite.coordinator.groups.offsets import OffsetStore, ReplayResult
from shoal.lite.coordinator.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from shoal.lite.storage.header import unpack_header
from shoal.wire.batch import Batch
from shoal.wire.errors import WireError
from shoal.wire.records.records import (
    ControlType,
    Record,
    decode_records,
    encode_batch,
    encode_control_batch,
)
from support.coordinator.group_members import subscription

KEY = OffsetKey("g", "t", 0)
TOPIC_ID = UUID(int=1)
HOUR_MS = 3_600_000


def encode_committed(offset: int, *, commit_ms: int = 0, expire_ms: int | None = None) -> bytes:
    return encode_offset(CommittedOffset(offset, -1, "", commit_ms, expire_ms))


class Log:
    """An offset store that replays what is written."""

    def __init__(self) -> None:
        self.store = OffsetStore({"t": TOPIC_ID}.get)
        self.end = 0

    def write(self, *values: bytes | None, producer_id: int = -1) -> ReplayResult:
        records = [Record(0, 0, encode_offset_key(KEY), value) for value in values]
        is_transactional = producer_id >= 0
        return self._replay(
            encode_batch(
                records,
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
                is_transactional=is_transactional,
            )
        )

    def end_transaction(self, producer_id: int, kind: ControlType) -> ReplayResult:
        return self._replay(
            encode_control_batch(
                kind,
                timestamp=0,
                coordinator_epoch=0,
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
            )
        )

    def _replay(self, batch: bytearray) -> ReplayResult:
        records: Sequence[Record] = decode_records(Batch(memoryview(batch)))
        self.end += len(records)
        return self.store.replay(unpack_header(batch), records)

    def read_committed_offset(self) -> int | None:
        found = self.store.get(*KEY)
        return None if found is None else found.offset


def test_the_last_commit_counts_and_a_tombstone_removes_it() -> None:
    log = Log()
    assert log.write(encode_committed(1), encode_committed(2)).offsets_of == {"g"}
    assert log.read_committed_offset() == 2
    assert log.store.has("g")
    log.write(None)
    assert log.read_committed_offset() is None
    assert not log.store.has("g")


def test_a_transaction_commits_or_does_not() -> None:
    log = Log()
    log.write(encode_committed(1))
    log.write(encode_committed(5), producer_id=7)
    assert (log.read_committed_offset(), log.store.is_pending(*KEY)) == (1, True)
    log.end_transaction(7, ControlType.ABORT)
    assert (log.read_committed_offset(), log.store.is_pending(*KEY)) == (1, False)
    log.write(encode_committed(6), producer_id=7)
    log.end_transaction(8, ControlType.COMMIT)
    assert (log.read_committed_offset(), log.store.is_pending(*KEY)) == (1, True)
    log.end_transaction(7, ControlType.COMMIT)
    assert (log.read_committed_offset(), log.store.is_pending(*KEY)) == (6, False)


def test_what_is_later_in_the_log_counts_though_a_transaction_ends_later_still() -> None:
    log = Log()
    log.write(encode_committed(5), producer_id=7)
    log.write(encode_committed(9))
    log.end_transaction(7, ControlType.COMMIT)
    assert log.read_committed_offset() == 9


def test_a_group_that_only_transactions_know() -> None:
    log = Log()
    log.write(encode_committed(5), producer_id=7)
    assert log.store.has("g")
    assert log.store.groups() == {"g"}
    log.end_transaction(7, ControlType.ABORT)
    assert not log.store.has("g")


def consumers(state: ClassicGroupState, *topics: str) -> ClassicGroup:
    """A group of consumers, stable or empty since the hour 1."""
    group = ClassicGroup(
        "g", state, since_wall_ms=HOUR_MS, protocol_type=CONSUMER, protocol="range"
    )
    if state is not ClassicGroupState.EMPTY:
        metadata = subscription(*topics)
        group.add(ClassicGroupMember("m", None, "", "", 1, 1, (GroupProtocol("range", metadata),)))
    return group


@pytest.mark.parametrize(
    ("group", "expires_at"),
    [
        (ClassicGroup("g"), 3 * HOUR_MS),
        (consumers(ClassicGroupState.EMPTY), 3 * HOUR_MS),
        (consumers(ClassicGroupState.STABLE, "t"), None),
        (consumers(ClassicGroupState.STABLE, "other"), 3 * HOUR_MS),
        (consumers(ClassicGroupState.PREPARING, "other"), None),
    ],
    ids=["no members by nature", "empty", "wanted", "not wanted", "rebalancing"],
)
def test_when_an_offset_expires(group: ClassicGroup, expires_at: int | None) -> None:
    log = Log()
    log.write(encode_committed(1, commit_ms=2 * HOUR_MS))
    last_ms = 100 * HOUR_MS if expires_at is None else expires_at - 1
    assert log.store.find_expired(group, last_ms, HOUR_MS) == []
    if expires_at is not None:
        assert log.store.find_expired(group, expires_at, HOUR_MS) == [KEY]
        log.write(encode_committed(2, commit_ms=2 * HOUR_MS), producer_id=7)
        assert log.store.find_expired(group, expires_at, HOUR_MS) == []


def test_records_come_back() -> None:
    stored = StoredGroup(
        "consumer",
        3,
        "range",
        "m",
        12,
        (StoredMember("m", "i", "client", "/127.0.0.1", 2, 1, b"sub", b"ass"),),
    )
    assert decode_group(encode_group(stored)) == stored
    nobody = StoredGroup("consumer", 4, None, None, 12, ())
    assert decode_group(encode_group(nobody)) == nobody
    assert decode_key(encode_group_key("g")) == GroupKey("g")
    assert decode_key(encode_offset_key(KEY)) == KEY
    for version, value in (
        (1, CommittedOffset(1, -1, "m", 3, 4)),
        (3, CommittedOffset(1, 2, "m", 3)),
        (4, CommittedOffset(1, 2, "m", 3, None, TOPIC_ID)),
    ):
        assert encode_offset(value)[1] == version
        assert decode_offset(encode_offset(value)) == value
    # The format with an expiry time has no place for a topic id.
    expiring = CommittedOffset(1, -1, "m", 3, 4, TOPIC_ID)
    assert decode_offset(encode_offset(expiring)) == expiring._replace(topic_id=None)


def test_formats_of_other_ages() -> None:
    # Version 0: offset, metadata, time. Version 4: flexible, with a tagged topic id.
    assert decode_offset(b"\x00\x00" + bytes(7) + b"\x05\x00\x01m" + bytes(8)).offset == 5
    flexible = bytes(7) + b"\x05" + b"\xff" * 4 + b"\x02m" + bytes(8) + b"\x01\x00\x10" + bytes(16)
    assert decode_offset(b"\x00\x04" + flexible).metadata == "m"
    assert decode_offset(b"\x00\x04" + flexible).topic_id is None
    assert decode_offset(b"\x00\x04" + flexible[:-1] + b"\x01").topic_id == TOPIC_ID
    assert decode_key(b"\x00\x03\x00\x01g") is None
    with pytest.raises(WireError):
        decode_offset(b"\x00\x09")


@pytest.mark.parametrize(
    ("committed_for", "topic_now", "counts"),
    [
        (TOPIC_ID, TOPIC_ID, True),
        (TOPIC_ID, UUID(int=2), False),
        (TOPIC_ID, None, False),
        # A format without an id: any topic with the name.
        (None, TOPIC_ID, True),
        (None, None, False),
    ],
)
def test_an_offset_counts_for_its_own_topic(
    committed_for: UUID | None, topic_now: UUID | None, counts: bool
) -> None:
    log = Log()
    topics: dict[str, UUID] = {} if topic_now is None else {"t": topic_now}
    log.store = OffsetStore(topics.get)
    log.write(encode_offset(CommittedOffset(5, -1, "", 0, None, committed_for)))
    assert (log.store.get(*KEY) is not None) is counts
    assert (list(log.store.of_group("g")) == [("t", 0)]) is counts
    assert list(log.store.stale()) == ([] if counts else [KEY])
    assert log.store.keys_of("g") == [KEY], "until it is removed"
    # The same while a transaction may commit it.
    log.write(None)
    log.write(encode_offset(CommittedOffset(5, -1, "", 0, None, committed_for)), producer_id=1)
    assert log.store.is_pending(*KEY) is counts
    assert (log.store.pending_of("g") == {("t", 0)}) is counts
    log.end_transaction(1, ControlType.COMMIT)
    assert log.store.is_stale(KEY) is not counts


def test_an_offset_without_a_topic_id_goes_with_the_topic_of_its_name() -> None:
    log = Log()
    log.write(encode_committed(5))
    log.store.disown({"other"})
    assert log.store.get(*KEY) is not None
    log.store.disown({"t"})
    assert (log.store.get(*KEY), list(log.store.stale())) == (None, [KEY])
    log.write(encode_committed(6))
    assert log.store.get(*KEY) is not None, "committed after the deletion"
