"""Admission: every row of its table of rules, with the code that it gives, and their order."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers, TopicConfig, resolve_topic_config
from shoal.lite.partitions.admission import decisions
from shoal.lite.partitions.admission.guards import VerificationGuard, VerificationGuards
from shoal.lite.partitions.admission.refusals import Refusals
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.storage.header import unpack_header
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.state.producer_state import ProducerStates
from shoal.lite.storage.state.replaying import marker_in
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.produce import ProduceRequest, ReceivedPartition
from shoal.wire.records.crc import crc32c
from shoal.wire.records.records import ControlType, Record, encode_batch, encode_control_batch
from support.lite.batches import NOW_MS, append, batch_of
from support.replication.parts import leader_of, log_of

KEY = TopicPartition("t", 0)
ID = 7
HOUR_MS = 3_600_000
FAR_MS = NOW_MS + 2 * HOUR_MS
LOG_APPEND_TIME, CONTROL = 0x08, 0x20
ZSTD = 4
# Positions in the header of a batch.
LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, DELTA_AT, COUNT_AT = 8, 16, 17, 21, 23, 57
RECENT = {"message.timestamp.before.max.ms": str(HOUR_MS)}
UNCOMPRESSED = {"compression.type": "uncompressed"}
BUSY = ApiError(Code.CONCURRENT_TRANSACTIONS, "the coordinator refused it")
EARLIER = ApiError(Code.NOT_ENOUGH_REPLICAS, "one replica is in sync")

# Batches


def batch(
    sequence: int = 0,
    *,
    epoch: int = 0,
    is_transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    key: bytes | None = None,
    value: bytes = b"x",
) -> bytearray:
    """A batch of the idempotent producer."""
    return encode_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def marker(*, epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    return encode_control_batch(
        ControlType.COMMIT,
        timestamp=NOW_MS,
        coordinator_epoch=coordinator_epoch,
        producer_id=ID,
        producer_epoch=epoch,
    )


def edit(data: bytearray, **changes: int) -> bytearray:
    """With other fields in the header, and a checksum that agrees."""
    Batch(memoryview(data)).edit(**changes)
    return data


def put(data: bytearray, position: int, value: bytes) -> bytearray:
    """With other bytes, and the checksum of before."""
    data[position : position + len(value)] = value
    return data


def put_checked(data: bytearray, position: int, value: bytes) -> bytearray:
    put(data, position, value)
    return put(data, 17, crc32c(bytes(data[21:])).to_bytes(4, "big"))


def make_mirrored(offset: int, **changes: int) -> bytearray:
    return edit(batch_of(b"x"), base_offset=offset, **changes)


# The partition


@dataclass
class Target:
    """A partition with two in-sync replicas of three, and the facts about one write."""

    configs: dict[str, str] = field(default_factory=dict)
    leads: bool = True
    isr: tuple[int, ...] = (1, 2)
    is_new_leader: bool = False
    offline_reason: str | None = None
    producers: ProducerStates = field(default_factory=ProducerStates)
    guards: VerificationGuards = field(default_factory=VerificationGuards)
    guard: VerificationGuard | None = None
    refusals: Refusals = field(default_factory=Refusals)
    version: int = 12
    refused: ApiError | None = None

    @property
    def leader(self) -> LeaderPartition:
        if not self.leads:
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, "broker 2 leads")
        return leader_of(log_of(), isr=self.isr, min_insync_replicas=2)

    @property
    def log(self) -> "Target":
        return self

    @property
    def rules(self) -> TopicConfig:
        return resolve_topic_config(Layers({}, {}, {}), self.configs)

    def has_new_leader(self) -> bool:
        return self.is_new_leader


def after(*batches: bytearray) -> ProducerStates:
    """The producer state after these batches and markers."""
    states = ProducerStates()
    for offset, data in enumerate(batches):
        header = unpack_header(data)
        if header.is_control:
            states.record_marker(header, offset, marker_in(memoryview(data)))
        else:
            states.record(header, offset)
    return states


def make_refusals() -> Refusals:
    """The batch with sequence 1 was refused a moment ago."""
    refusals = Refusals()
    refusals.add(KEY, unpack_header(batch(1)), EARLIER, NOW_MS)
    return refusals


def make_verified_target(first: bytearray) -> Target:
    """The coordinator was asked about the transaction that begins with this batch."""
    target = Target()
    header = unpack_header(first)
    target.guard = target.guards.begin_verification(header, target.producers, begins_at_zero=False)
    return target


# The writers, each as it asks


def request(*batches: bytearray, acks: int = -1, transactional_id: str | None = None) -> None:
    partitions = [ReceivedPartition("t", n, memoryview(data)) for n, data in enumerate(batches)]
    decisions.check_request(ProduceRequest(transactional_id, acks, 0, partitions))
    decisions.check_transactional_producers({unpack_header(data).producer_id for data in batches})


def produce(data: bytearray, target: Target | None = None) -> None:
    target = target or Target()
    records, header = decisions.admit_produced(
        memoryview(data),
        target,
        version=target.version,
        acks=-1,
        now_ms=NOW_MS,
        refused=target.refused,
    )
    assert header == unpack_header(records)
    earlier = decisions.follow_refusal(header, target, target.refusals, key=KEY, now_ms=NOW_MS)
    try:
        decisions.admit_next(header, target, target.guard)
    except ApiError as error:
        raise decisions.explain_sequence_error(error, header, target, earlier) from error


def coordinate(data: bytearray, target: Target) -> None:
    header = unpack_header(data)
    decisions.admit_coordinator_batch(memoryview(data), header, target, target.guard)


def end(data: bytearray, target: Target, *, is_bumped: bool = False) -> None:
    decisions.admit_marker(memoryview(data), unpack_header(data), target, is_bumped=is_bumped)


def mirror(log: PartitionLog, *batches: bytearray, configs: dict[str, str] | None = None) -> None:
    rules = Target(configs=configs or {}).rules
    decisions.admit_unit(memoryview(bytearray().join(batches)), log, rules)


def code_of(decision: Callable[[], object]) -> Code:
    try:
        result = decision()
    except ApiError as error:
        return error.code
    return result.code if isinstance(result, ApiError) else Code.NONE


# The table

OPEN = (batch(is_transactional=True),)
TOO_SMALL = Target(isr=(1,))
OFFLINE = Target(offline_reason="the disk failed")
ONE_KB: dict[str, str] = {"max.message.bytes": "1000"}
KB = b"x" * 1000
Decision = Callable[[], object]

PRODUCED: list[tuple[str, Code, Decision]] = [
    ("acks is not 0, 1 or -1", Code.INVALID_REQUIRED_ACKS, lambda: request(batch(), acks=2)),
    (
        "a transactional batch, no transactional id",
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        lambda: request(batch(is_transactional=True)),
    ),
    (
        "transactional batches of several producers",
        Code.INVALID_PRODUCER_ID_MAPPING,
        lambda: request(batch(), edit(batch(), producer_id=8), transactional_id="t"),
    ),
    (
        "an internal topic, not written by an admin",
        Code.INVALID_TOPIC_EXCEPTION,
        lambda: decisions.check_internal_topic("__consumer_offsets", "client"),
    ),
    (
        "not exactly one batch, or not of format 2",
        Code.INVALID_RECORD,
        lambda: produce(batch() + batch()),
    ),
    (
        "not exactly one batch, or not of format 2",
        Code.INVALID_RECORD,
        lambda: produce(put(batch(), MAGIC_AT, b"\1")),
    ),
    (
        "a batch length below the length of a header",
        Code.CORRUPT_MESSAGE,
        lambda: produce(put(batch(), LENGTH_AT, bytes(4))),
    ),
    (
        "an unknown codec, or zstd before version 7",
        Code.UNSUPPORTED_COMPRESSION_TYPE,
        lambda: produce(edit(batch(), attributes=7)),
    ),
    (
        "an unknown codec, or zstd before version 7",
        Code.UNSUPPORTED_COMPRESSION_TYPE,
        lambda: produce(batch_of(b"x", codec=ZSTD), Target(version=6)),
    ),
    (
        "the coordinator refused its transaction",
        Code.NOT_ENOUGH_REPLICAS,
        lambda: decisions.verification_error(Code.CONCURRENT_TRANSACTIONS, adds=False),
    ),
    (
        "the coordinator refused its transaction",
        Code.CONCURRENT_TRANSACTIONS,
        lambda: produce(batch(is_transactional=True), Target(refused=BUSY)),
    ),
    (
        "this replica does not lead",
        Code.NOT_LEADER_OR_FOLLOWER,
        lambda: produce(batch(), Target(leads=False)),
    ),
    (
        "acks=all, and the ISR is too small",
        Code.NOT_ENOUGH_REPLICAS,
        lambda: produce(batch(), TOO_SMALL),
    ),
    (
        "a base offset other than 0",
        Code.INVALID_RECORD,
        lambda: produce(edit(batch(), base_offset=5)),
    ),
    (
        "more than max.message.bytes",
        Code.MESSAGE_TOO_LARGE,
        lambda: produce(batch(value=KB), Target(configs=ONE_KB)),
    ),
    ("a wrong checksum", Code.CORRUPT_MESSAGE, lambda: produce(put(batch(), CRC_AT, bytes(4)))),
    (
        "record count and last offset delta disagree",
        Code.INVALID_RECORD,
        lambda: produce(put_checked(batch(), DELTA_AT, b"\0\0\0\7")),
    ),
    (
        "a control batch",
        Code.INVALID_RECORD,
        lambda: produce(edit(batch(), attributes=CONTROL)),
    ),
    (
        "a producer id without a sequence",
        Code.INVALID_RECORD,
        lambda: produce(edit(batch(), base_sequence=-1)),
    ),
    (
        "more than segment.bytes",
        Code.RECORD_LIST_TOO_LARGE,
        lambda: produce(batch(value=KB), Target(configs={"segment.bytes": "1000"})),
    ),
    (
        "LogAppendTime set by the client",
        Code.INVALID_TIMESTAMP,
        lambda: produce(
            edit(batch(), attributes=LOG_APPEND_TIME),
            Target(configs={"message.timestamp.type": "LogAppendTime"}),
        ),
    ),
    (
        "timestamps too far in the future or in the past",
        Code.INVALID_TIMESTAMP,
        lambda: produce(batch(timestamp_ms=FAR_MS)),
    ),
    (
        "timestamps too far in the future or in the past",
        Code.INVALID_TIMESTAMP,
        lambda: produce(batch(timestamp_ms=NOW_MS - 2 * HOUR_MS), Target(configs=RECENT)),
    ),
    (
        "too large when decompressed",
        Code.MESSAGE_TOO_LARGE,
        lambda: produce(batch_of(bytes(129 << 20), codec=ZSTD), Target(configs=UNCOMPRESSED)),
    ),
    (
        "records that cannot be read",
        Code.INVALID_RECORD,
        lambda: produce(edit(batch(), attributes=ZSTD), Target(configs=UNCOMPRESSED)),
    ),
    (
        "a compacted topic, and a record without a key",
        Code.INVALID_RECORD,
        lambda: produce(batch(), Target(configs={"cleanup.policy": "compact"})),
    ),
    (
        "a record too far in the future or in the past",
        Code.INVALID_TIMESTAMP,
        lambda: produce(
            encode_batch([Record(0, t, None, b"x") for t in (NOW_MS, NOW_MS - 2 * HOUR_MS)]),
            Target(configs=RECENT),
        ),
    ),
    (
        "recompressed, more than max.message.bytes",
        Code.MESSAGE_TOO_LARGE,
        lambda: produce(batch_of(KB, codec=ZSTD), Target(configs=ONE_KB | UNCOMPRESSED)),
    ),
    (
        "an unknown producer, an earlier batch was refused",
        EARLIER.code,
        lambda: produce(batch(2), Target(refusals=make_refusals())),
    ),
]

NEXT: list[tuple[str, Code, Decision]] = [
    (
        "its transaction is neither open nor verified",
        Code.INVALID_TXN_STATE,
        lambda: produce(batch(is_transactional=True)),
    ),
    (
        "not the first of its verified transaction",
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        lambda: produce(batch(4, is_transactional=True), make_verified_target(batch(3))),
    ),
    ("the log is offline", Code.KAFKA_STORAGE_ERROR, lambda: produce(batch(), OFFLINE)),
    (
        "an older producer epoch",
        Code.INVALID_PRODUCER_EPOCH,
        lambda: produce(batch(epoch=1), Target(producers=after(batch(epoch=2)))),
    ),
    (
        "a newer producer epoch that does not start at 0",
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        lambda: produce(batch(1, epoch=1), Target(producers=after(batch()))),
    ),
    (
        "one of the last five batches of its producer",
        Code.NONE,
        lambda: produce(batch(0), Target(producers=after(batch(0), batch(1)))),
    ),
    (
        "not the next sequence",
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        lambda: produce(batch(2), Target(producers=after(batch(0)))),
    ),
    (
        "not transactional while a transaction is open",
        Code.INVALID_TXN_STATE,
        lambda: produce(batch(1), Target(producers=after(*OPEN))),
    ),
    (
        "* if an earlier batch was refused",
        EARLIER.code,
        lambda: produce(batch(2), Target(producers=after(batch(0)), refusals=make_refusals())),
    ),
    (
        "* if it is ahead, and the leader is new",
        Code.NOT_LEADER_OR_FOLLOWER,
        lambda: produce(batch(2), Target(producers=after(batch(0)), is_new_leader=True)),
    ),
]

COORDINATED: list[tuple[str, Code, Decision]] = [
    ("the ISR is too small", Code.NOT_ENOUGH_REPLICAS, lambda: coordinate(batch(), TOO_SMALL)),
    (
        "more than max.message.bytes",
        Code.MESSAGE_TOO_LARGE,
        lambda: coordinate(batch(value=KB), Target(configs=ONE_KB)),
    ),
    (
        "its transaction is neither open nor verified",
        Code.INVALID_TXN_STATE,
        lambda: coordinate(batch(is_transactional=True), Target()),
    ),
    ("the log is offline", Code.KAFKA_STORAGE_ERROR, lambda: coordinate(batch(), OFFLINE)),
    (
        "an older producer epoch",
        Code.INVALID_PRODUCER_EPOCH,
        lambda: coordinate(batch(epoch=1), Target(producers=after(batch(epoch=2)))),
    ),
]

MARKERS: list[tuple[str, Code, Decision]] = [
    ("the ISR is too small", Code.NOT_ENOUGH_REPLICAS, lambda: end(marker(), TOO_SMALL)),
    ("the log is offline", Code.KAFKA_STORAGE_ERROR, lambda: end(marker(), OFFLINE)),
    (
        "an older producer epoch",
        Code.INVALID_PRODUCER_EPOCH,
        lambda: end(marker(epoch=1), Target(producers=after(batch(epoch=2)))),
    ),
    (
        "an equal one, in the second protocol",
        Code.INVALID_PRODUCER_EPOCH,
        lambda: end(marker(epoch=2), Target(producers=after(batch(epoch=2))), is_bumped=True),
    ),
    (
        "an older coordinator epoch",
        Code.TRANSACTION_COORDINATOR_FENCED,
        lambda: end(
            marker(coordinator_epoch=4),
            Target(producers=after(*OPEN, marker(coordinator_epoch=5))),
        ),
    ),
]

MIRRORED: list[tuple[str, Code, Callable[[PartitionLog], object]]] = [
    ("a lower mirror epoch", Code.PRODUCER_FENCED, lambda _: decisions.check_mirror_epoch(2, 3)),
    ("a lower mirror epoch", Code.PRODUCER_FENCED, lambda _: decisions.check_mirror_takeover(3, 4)),
    (
        "the ISR is too small",
        Code.NOT_ENOUGH_REPLICAS,
        lambda log: decisions.check_log_end(TOO_SMALL.leader, log.end_offset, 9),
    ),
    (
        "the log ends elsewhere",
        Code.OFFSET_OUT_OF_RANGE,
        lambda log: decisions.check_log_end(Target().leader, log.end_offset, 9),
    ),
    (
        "incomplete, not of format 2, an unknown codec",
        Code.INVALID_RECORD,
        lambda log: mirror(log, make_mirrored(1)[:-1]),
    ),
    (
        "incomplete, not of format 2, an unknown codec",
        Code.INVALID_RECORD,
        lambda log: mirror(log, make_mirrored(1, attributes=7)),
    ),
    (
        "more than max.message.bytes",
        Code.MESSAGE_TOO_LARGE,
        lambda log: mirror(log, edit(batch_of(KB), base_offset=1), configs=ONE_KB),
    ),
    (
        "a wrong checksum",
        Code.CORRUPT_MESSAGE,
        lambda log: mirror(log, put(make_mirrored(1), CRC_AT, bytes(4))),
    ),
    (
        "an offset below the next one",
        Code.INVALID_RECORD,
        lambda log: mirror(log, make_mirrored(5), make_mirrored(5)),
    ),
    (
        "more records than offsets",
        Code.INVALID_RECORD,
        lambda log: mirror(log, put_checked(make_mirrored(1), COUNT_AT, b"\0\0\0\7")),
    ),
    (
        "a producer id, a transaction or a marker",
        Code.INVALID_RECORD,
        lambda log: mirror(log, edit(batch(), base_offset=1)),
    ),
    (
        "the last offset is too far above the log end",
        Code.INVALID_RECORD,
        lambda log: mirror(log, make_mirrored(1), make_mirrored(1 << 33)),
    ),
]


@pytest.mark.parametrize(
    ("code", "decision"),
    [pytest.param(*row[1:], id=row[0]) for row in (*PRODUCED, *NEXT, *COORDINATED, *MARKERS)],
)
def test_each_rule_gives_its_code(code: Code, decision: Decision) -> None:
    assert code_of(decision) is code


@pytest.mark.parametrize(
    ("code", "decision"), [pytest.param(*row[1:], id=row[0]) for row in MIRRORED]
)
def test_each_rule_for_mirrors_gives_its_code(
    code: Code, decision: Callable[[PartitionLog], object], tmp_path: Path
) -> None:
    log = PartitionLog(tmp_path, Target().rules.log, last_shutdown=LastShutdown.CLEANLY)
    append(log, batch_of(b"x"))
    assert code_of(lambda: decision(log)) is code
    assert code_of(lambda: mirror(log, make_mirrored(1), make_mirrored(5))) is Code.NONE
    assert code_of(lambda: decisions.check_log_end(Target().leader, 1, 1)) is Code.NONE
    log.close()


def test_what_no_rule_refuses_is_admitted() -> None:
    assert code_of(lambda: request(batch())) is Code.NONE
    assert code_of(lambda: produce(batch())) is Code.NONE
    assert code_of(lambda: produce(batch(1), Target(producers=after(batch())))) is Code.NONE
    assert code_of(lambda: coordinate(batch(), Target(producers=after(batch())))) is Code.NONE
    assert code_of(lambda: end(marker(), Target(producers=after(*OPEN)))) is Code.NONE
    first = batch(3, is_transactional=True)
    assert code_of(lambda: produce(first, make_verified_target(first))) is Code.NONE


def test_the_first_rule_that_applies_decides() -> None:
    """Each further fault of the same batch is decided before those that it already has."""
    target = Target(producers=after(batch()), offline_reason="the disk failed")
    data = edit(batch(5, timestamp_ms=FAR_MS, value=KB), attributes=CONTROL)
    codes = [code_of(lambda: produce(data, target))]

    def spoil(position: int, value: bytes) -> None:
        put(data, position, value)
        codes.append(code_of(lambda: produce(data, target)))

    def change(**facts: object) -> None:
        for name, value in facts.items():
            setattr(target, name, value)
        codes.append(code_of(lambda: produce(data, target)))

    spoil(CRC_AT, bytes(4))
    change(configs=ONE_KB)
    spoil(0, b"\0\0\0\0\0\0\0\5")
    change(isr=(1,))
    change(leads=False)
    change(refused=BUSY)
    spoil(ATTRIBUTES_AT, b"\0\7")
    spoil(LENGTH_AT, bytes(4))
    spoil(MAGIC_AT, b"\1")
    assert codes == [
        Code.INVALID_RECORD,
        Code.CORRUPT_MESSAGE,
        Code.MESSAGE_TOO_LARGE,
        Code.INVALID_RECORD,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.UNSUPPORTED_COMPRESSION_TYPE,
        Code.CORRUPT_MESSAGE,
        Code.INVALID_RECORD,
    ]


def test_the_docstring_is_this_table() -> None:
    """In the same order, with the same codes; a row may have several situations here."""
    rows = re.findall(r"^ {2,4}(\S.*?) {2,}(\S.*)$", decisions.__doc__ or "", re.MULTILINE)
    tested = [row[:2] for row in (*PRODUCED, *NEXT, *COORDINATED, *MARKERS, *MIRRORED)]
    names = [name for name, _ in tested]
    assert [name for name, _ in rows] == [
        name for place, name in enumerate(names) if place == 0 or names[place - 1] != name
    ]
    said = {name: text.split()[0].rstrip(":") for name, text in rows if text[:3] != "the"}
    assert {name: code.name for name, code in tested if name in said} == said
