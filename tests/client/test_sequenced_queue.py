"""The queue that the producer and the mirror share: what follows from each answer in each state."""

from typing import NamedTuple

import pytest

from shoal.client.codes import Code, outcome_of
from shoal.client.produce.sequenced_queue import (
    BrokerState,
    Decision,
    QueuedBatch,
    SendPolicy,
    SequencedQueue,
    decide,
)
from shoal.client.produce.sequencing import Mode
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.delivery.at_least_once import AtLeastOnceDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.model.findings import Outcome
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch

PLAIN, IDEMPOTENT, TRANSACTIONAL = (mode.value for mode in Mode)
MIRROR = IdempotentDelivery.policy
MIRROR_PLAIN = AtLeastOnceDelivery.policy
POLICIES = {
    "plain": PLAIN,
    "idempotent": IDEMPOTENT,
    "transactional": TRANSACTIONAL,
    "mirror": MIRROR,
    "mirror plain": MIRROR_PLAIN,
}

ACK, RETRY, BEHIND = Decision.ACKNOWLEDGED, Decision.RETRY, Decision.RETRY_BEHIND
LATER, CHANGE = Decision.AWAIT_LATER, Decision.CHANGE_IDENTITY
QUERY, GIVE_UP = Decision.QUERY_LAST_SEQUENCE, Decision.GIVE_UP


class State(NamedTuple):
    """Of a batch before an answer."""

    is_oldest: bool = True
    is_halted: bool = False
    may_be_written: bool = False


FIRST = State()
LATER_ONE = State(is_oldest=False)
DOUBTED = State(may_be_written=True)
DOUBTED_LATER = State(is_oldest=False, may_be_written=True)
HALTED = State(is_oldest=False, is_halted=True)
HALTED_DOUBTED = State(is_oldest=False, is_halted=True, may_be_written=True)
STATES = (FIRST, LATER_ONE, DOUBTED, DOUBTED_LATER, HALTED, HALTED_DOUBTED)

Row = tuple[Decision, ...]
SAME_RETRY: Row = (RETRY,) * 6
SAME_GIVE_UP: Row = (GIVE_UP,) * 6
# A batch that may be in the log under an identity that ended is not sent under the next one.
RETRY_UNLESS_DOUBTED: Row = (RETRY,) * 5 + (GIVE_UP,)
# An unknown outcome: it is doubted from now on.
UNKNOWN_AND_HALTED: Row = (RETRY,) * 4 + (GIVE_UP,) * 2
OUT_OF_SEQUENCE: dict[str, Row] = {
    "plain": SAME_GIVE_UP,
    "idempotent": (CHANGE, BEHIND, LATER, BEHIND, BEHIND, GIVE_UP),
    "transactional": (GIVE_UP, BEHIND, LATER, BEHIND, BEHIND, GIVE_UP),
    "mirror": (QUERY, BEHIND, QUERY, BEHIND, BEHIND, BEHIND),
    "mirror plain": SAME_GIVE_UP,
}
RETRIABLE: dict[str, Row] = {
    "plain": SAME_RETRY,  # it has no identity, and is never halted
    "idempotent": RETRY_UNLESS_DOUBTED,
    "transactional": RETRY_UNLESS_DOUBTED,
    "mirror": SAME_RETRY,
    "mirror plain": SAME_RETRY,
}
UNKNOWN: dict[str, Row] = {
    "plain": SAME_RETRY,
    "idempotent": UNKNOWN_AND_HALTED,
    "transactional": UNKNOWN_AND_HALTED,
    "mirror": SAME_RETRY,
    "mirror plain": SAME_RETRY,
}
FINAL = dict.fromkeys(POLICIES, SAME_GIVE_UP)
# A mirror leaves nothing out: what may be at the target is sent again until it certainly is.
UNKNOWN_FOR_GOOD = FINAL | {"mirror": SAME_RETRY, "mirror plain": SAME_RETRY}

# For each answer and policy: the decisions in `STATES`, in that order.
TABLE: dict[Code, dict[str, Row]] = {
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: OUT_OF_SEQUENCE,
    Code.UNKNOWN_PRODUCER_ID: OUT_OF_SEQUENCE,
    Code.NOT_ENOUGH_REPLICAS: RETRIABLE,
    Code.CORRUPT_MESSAGE: RETRIABLE,
    Code.NOT_LEADER_OR_FOLLOWER: UNKNOWN,  # with acks=all it may follow the append
    Code.REQUEST_TIMED_OUT: UNKNOWN,
    Code.NETWORK_EXCEPTION: UNKNOWN,
    Code.UNKNOWN_SERVER_ERROR: UNKNOWN_FOR_GOOD,
    Code.PRODUCER_FENCED: FINAL,
    Code.INVALID_PRODUCER_EPOCH: FINAL,
    Code.MESSAGE_TOO_LARGE: FINAL,
    Code.TOPIC_AUTHORIZATION_FAILED: FINAL,
}


def answer(code: Code) -> ProduceResult:
    return ProduceResult(outcome_of(code, acks=-1), code)


@pytest.mark.parametrize("code", TABLE)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_answer_leads_to_one_decision_in_each_state(code: Code, policy: str) -> None:
    result = answer(code)
    decisions = []
    for state in STATES:
        is_doubted = state.may_be_written or result.outcome is Outcome.UNKNOWN
        after = state._replace(may_be_written=is_doubted)._asdict()
        decisions.append(decide(POLICIES[policy], result, **after))
    assert tuple(decisions) == TABLE[code][policy]


# The queue itself.


def make_queue(policy: SendPolicy = MIRROR, *, count: int = 4) -> SequencedQueue[QueuedBatch]:
    """Of batches with two records each, numbered as the mirror does it."""
    queue: SequencedQueue[QueuedBatch] = SequencedQueue(
        policy, max_in_flight=5, backoff=Backoff(100, 1000, chance=lambda: 0.5)
    )
    for _ in range(count):
        queued = QueuedBatch(
            Batch(memoryview(encode_batch([Record(i, 0, None, b"") for i in (0, 1)])))
        )
        queued.batch.edit(base_sequence=queue.number(queued, 2))
        queue.add(queued)
    return queue


def send(queue: SequencedQueue[QueuedBatch], now: float = 0.0) -> list[QueuedBatch]:
    sent = []
    while (queued := queue.next_in_order(now)) is not None:
        queue.begin_attempt(queued)
        sent.append(queued)
    return sent


@pytest.mark.parametrize("code", [Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER])
@pytest.mark.parametrize("policy", POLICIES)
def test_written_now_or_before_is_acknowledged(code: Code, policy: str) -> None:
    queue = make_queue(POLICIES[policy])
    queue.begin_attempt(queue.batches[0])
    assert queue.on_answer(queue.batches[0], answer(code), 0.0) is ACK
    assert (queue.in_flight, queue.is_established, queue.is_recovering) == (0, True, False)


def test_out_of_sequence_halts_until_the_owner_knows_the_brokers_state() -> None:
    queue = make_queue()
    queue.is_established = True
    first, second, *_ = send(queue)
    refused = answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert queue.on_answer(first, refused, 0.0) is QUERY
    assert (queue.is_halted, queue.needs_broker_state) == (True, False)  # three are in flight
    for queued in list(queue.batches)[1:]:
        assert queue.on_answer(queued, refused, 0.0) is BEHIND
    assert queue.needs_broker_state
    assert send(queue, 9.0) == []
    assert queue.on_last_sequence(1) is BrokerState.FITS
    assert send(queue, 9.0)[:2] == [first, second]


def test_batches_that_fail_together_wait_once() -> None:
    queue = make_queue()
    queue.is_established = True
    for queued in send(queue):
        assert queue.on_answer(queued, answer(Code.NETWORK_EXCEPTION), 1.0) is RETRY
        queue.back_off(1.0)
    assert (queue.not_before, queue.backoff.failures) == (1.1, 1)
    assert len(send(queue, 2.0)) == 4


def test_one_batch_goes_alone_after_the_broker_may_have_forgotten_the_producer() -> None:
    queue = make_queue(count=6)
    queue.remembered_s = 10.0
    (first,) = send(queue)
    queue.on_answer(first, answer(Code.NONE), 0.0)
    assert [len(send(queue, now)) for now in (10.0, 11.0)] == [1, 0]
    queue.on_answer(queue.batches[1], answer(Code.NONE), 12.0)
    assert len(send(queue, 12.0)) == 4


# Four batches with the sequences 0-1, 2-3, 4-5 and 6-7.
@pytest.mark.parametrize(
    ("last_sequence", "is_established", "state", "next_index"),
    [
        (None, False, BrokerState.FITS, 0),
        (None, True, BrokerState.BEHIND, 0),
        ((1 << 31) - 1, True, BrokerState.FITS, 0),  # the one before the first
        (1, True, BrokerState.FITS, 0),  # sent again: the duplicate proves it is replicated
        (5, True, BrokerState.FITS, 2),
        (7, True, BrokerState.FITS, 3),
        (4, True, BrokerState.INSIDE, 0),  # inside a batch: another process has sent others
        (0, True, BrokerState.INSIDE, 0),
        ((1 << 31) - 9, True, BrokerState.BEHIND, 0),
        (8, True, BrokerState.AHEAD, 0),
        (1000, True, BrokerState.AHEAD, 0),
    ],
)
def test_the_last_sequence_of_the_broker_says_where_to_continue(
    last_sequence: int | None, is_established: bool, state: BrokerState, next_index: int
) -> None:
    queue = make_queue()
    queue.is_established, queue.is_halted = is_established, True
    assert queue.on_last_sequence(last_sequence) is state
    assert not queue.is_halted
    assert queue.next_in_order(0.0) is queue.batches[next_index]


def test_a_last_sequence_means_nothing_to_an_empty_queue() -> None:
    for last_sequence in (None, 0, 1000):
        queue = make_queue(count=0)
        queue.is_established = queue.is_halted = True
        assert queue.on_last_sequence(last_sequence) is BrokerState.FITS
