"""The error tree: names, flags, places; and what a code says about a batch."""

import pytest

from shoal.client.codes import Code, facts_of, outcome_of
from shoal.client.errors import (
    ConnectionLost,
    KafkaError,
    NoBrokersAvailable,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    RequestTimedOut,
    error_for,
)
from shoal.client.results import ProduceResult
from shoal.model.errors import ClientError, ShoalError, UnreachableError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition


def test_every_code_of_kafka_has_a_name_and_flags() -> None:
    from kio.schema.errors import ErrorCode

    for code in ErrorCode:
        facts = facts_of(code.value)
        assert facts.name == code.name.upper()
        assert facts.retriable == code.retriable


def test_a_code_from_the_future_is_named_by_its_number() -> None:
    error = error_for(30_000)
    assert error.name == "UNKNOWN_CODE_30000"
    assert not error.retriable


def test_an_error_says_what_where_and_why() -> None:
    error = error_for(1, topic="t", partition=3, offset=42)
    assert str(error) == (
        "t-3 at offset 42: OFFSET_OUT_OF_RANGE (1): the offset is not within the log"
    )
    assert isinstance(error, OffsetOutOfRange)
    assert (error.topic, error.partition, error.offset, error.code) == ("t", 3, 42, 1)
    assert error.blame == "remote"


@pytest.mark.parametrize(
    ("code", "cls"),
    [(45, OutOfSequence), (59, OutOfSequence), (47, ProducerFenced), (90, ProducerFenced)],
)
def test_codes_that_callers_catch_have_classes(code: int, cls: type[KafkaError]) -> None:
    assert type(error_for(code)) is cls


def test_flags_tell_what_to_do_next() -> None:
    moved = error_for(Code.NOT_LEADER_OR_FOLLOWER)
    assert (moved.retriable, moved.invalidates_metadata) == (True, True)
    too_large = error_for(Code.MESSAGE_TOO_LARGE)
    assert (too_large.retriable, too_large.invalidates_metadata) == (False, False)


def test_lost_connections_are_unreachable_and_say_whether_the_request_left() -> None:
    for error in (ConnectionLost("gone", sent=True), RequestTimedOut("slow", sent=True)):
        assert isinstance(error, UnreachableError)
        assert isinstance(error, ClientError)
        assert error.retriable
        assert error.blame == "remote"
        assert error.sent


def test_no_brokers_names_each_address_and_why() -> None:
    error = NoBrokersAvailable([("a:1", "connection refused"), ("b:2", "no answer in time")])
    text = "no broker answers (a:1: connection refused; b:2: no answer in time)"
    assert (error.message, str(error)) == (text, f"{text}; {error.remedy}")
    assert isinstance(error, ShoalError)


@pytest.mark.parametrize(
    ("code", "acks", "outcome"),
    [
        (Code.NONE, -1, Outcome.OK),
        (Code.DUPLICATE_SEQUENCE_NUMBER, -1, Outcome.OK),
        (Code.NOT_ENOUGH_REPLICAS, -1, Outcome.FAILED),
        (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, Outcome.UNKNOWN),
        (Code.REQUEST_TIMED_OUT, -1, Outcome.UNKNOWN),
        (Code.UNKNOWN_SERVER_ERROR, -1, Outcome.UNKNOWN),
        (Code.KAFKA_STORAGE_ERROR, -1, Outcome.UNKNOWN),
        (Code.CORRUPT_MESSAGE, -1, Outcome.FAILED),
        (Code.INVALID_RECORD, -1, Outcome.FAILED),
        # With acks=all a leader may say so after it has written.
        (Code.NOT_LEADER_OR_FOLLOWER, -1, Outcome.UNKNOWN),
        (Code.NOT_LEADER_OR_FOLLOWER, 1, Outcome.FAILED),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, Outcome.UNKNOWN),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, 1, Outcome.FAILED),
        (30_000, -1, Outcome.UNKNOWN),
    ],
)
def test_outcomes_err_on_the_side_of_unknown(code: int, acks: int, outcome: Outcome) -> None:
    assert outcome_of(code, acks=acks) is outcome


def test_a_result_has_the_error_behind_it() -> None:
    tp = TopicPartition("t", 0)
    answered = ProduceResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE, error_message="2 MB")
    assert str(answered.error(tp)) == "t-0: MESSAGE_TOO_LARGE (10): 2 MB"
    cause = ConnectionLost("gone", sent=True)
    lost = ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION, cause=cause)
    assert lost.error(tp) is cause
    assert lost.outcome_unknown
