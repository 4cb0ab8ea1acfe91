"""Requests of transactions one by one: who may do what when, and with which code it is refused."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from shoal.wire.api_keys import ApiKey
from shoal.wire.produce import ProducePartition, decode_produce_response
from shoal.wire.records.records import Record, encode_batch
from support.lite.client import PlainClient, at

NewName = Callable[[str], str]
# While coordinators are found, load, or end the transaction before.
PASSING = {14, 15, 16, 51}
OUT_OF_ORDER, OLD_EPOCH, WRONG_STATE, WRONG_ID, WRONG_TIMEOUT = 45, 47, 48, 49, 50
FENCED, ABORTABLE, INVALID_REQUEST, UNKNOWN_TOPIC, NOT_ATTEMPTED = 90, 120, 42, 3, 55
COORDINATOR_FENCED, ID_NOT_FOUND = 52, 105


class Who(NamedTuple):
    """A transactional id, and its producer."""

    name: str
    producer_id: int = -1
    epoch: int = -1

    @property
    def values(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def batch(self, sequence: int = 0) -> bytearray:
        return encode_batch(
            [Record(0, time.time_ns() // 1_000_000, None, b"value")],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )


class Coordinated(PlainClient):
    """The requests of a transactional producer, one try each unless it passes."""

    def init(self, who: Who, *, version: int = 4, timeout_ms: int = 10_000) -> tuple[int, Who]:
        answer = self.patient(
            ApiKey.INIT_PRODUCER_ID, version, **who.values, transaction_timeout=timeout_ms
        )
        return int(answer.error_code), Who(who.name, answer.producer_id, answer.producer_epoch)

    def start(self, name: str) -> Who:
        """Find the coordinator and take the id over."""
        self.patient(ApiKey.FIND_COORDINATOR, 3, key=name, key_type=1)
        code, who = self.init(Who(name))
        assert code == 0
        return who

    def patient(self, key: ApiKey, version: int, /, **values: Any) -> Any:
        deadline_s = time.monotonic() + 30
        while True:
            answer = self.request(key, version, **values)
            if answer.error_code not in PASSING or time.monotonic() > deadline_s:
                return answer
            time.sleep(0.02)

    def add(self, who: Who, *partitions: tuple[str, int], version: int = 3) -> list[int]:
        deadline_s = time.monotonic() + 30
        while True:
            answer = self.request(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                **{f"v3_and_below_{name}": value for name, value in who.values.items()},
                v3_and_below_topics=[{"name": t, "partitions": [p]} for t, p in partitions],
            )
            # Apache Kafka answers in any order.
            told = {
                (topic.name, part.partition_index): part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }
            codes = [told[partition] for partition in partitions]
            if not PASSING & set(codes) or time.monotonic() > deadline_s:
                return codes
            time.sleep(0.02)

    def end(self, who: Who, *, commits: bool, version: int = 3) -> tuple[int, Who]:
        answer = self.patient(ApiKey.END_TXN, version, **who.values, committed=commits)
        new = Who(
            who.name, getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1)
        )
        return int(answer.error_code), new

    def state(self, name: str) -> Any:
        answer = self.request(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name])
        return answer.transaction_states[0]


@pytest.fixture
def client(bootstrap: str) -> Iterator[Coordinated]:
    with Coordinated(bootstrap) as plain:
        yield plain


@pytest.fixture
def who(client: Coordinated, new_name: NewName) -> Who:
    return client.start(new_name("id"))


def test_starting(client: Coordinated, who: Who) -> None:
    assert client.init(Who(""))[0] == INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert client.init(who, timeout_ms=timeout_ms)[0] == WRONG_TIMEOUT
    assert client.init(who._replace(epoch=-1))[0] == INVALID_REQUEST
    assert client.state(who.name).transaction_state == "Empty"


def test_taking_over(client: Coordinated, who: Who) -> None:
    code, newer = client.init(Who(who.name))
    assert (code, newer.producer_id, newer.epoch) == (0, who.producer_id, who.epoch + 1)
    assert client.init(who)[0] == FENCED
    assert client.init(who, version=3)[0] == OLD_EPOCH
    code, same = client.init(newer)
    assert (code, same.epoch) == (0, newer.epoch + 1)
    # The answer was lost: the same question gets the same answer.
    assert client.init(newer) == (0, same)
    assert client.init(who._replace(producer_id=who.producer_id + 1000))[0] == FENCED


def test_announcing(client: Coordinated, who: Who, topic: str) -> None:
    stranger = Who("nobody-knows-me", who.producer_id, who.epoch)
    assert client.add(stranger, (topic, 0)) == [WRONG_ID]
    assert client.add(who._replace(producer_id=who.producer_id + 1000), (topic, 0)) == [WRONG_ID]
    assert client.add(who._replace(epoch=who.epoch + 1), (topic, 0)) == [FENCED]
    assert client.add(who._replace(epoch=who.epoch + 1), (topic, 0), version=1) == [OLD_EPOCH]
    assert client.add(who, (topic, 0), ("no-such-topic", 0)) == [NOT_ATTEMPTED, UNKNOWN_TOPIC]
    assert client.state(who.name).transaction_state == "Empty"
    assert client.add(who, (topic, 0)) == [0]
    assert client.add(who, (topic, 0)) == [0]
    state = client.state(who.name)
    assert (state.transaction_state, state.producer_epoch) == ("Ongoing", who.epoch)
    assert [(t.topic, t.partitions) for t in state.topics] == [(topic, (0,))]
    assert client.end(who, commits=False)[0] == 0


@pytest.mark.parametrize(("version", "code"), [(9, WRONG_STATE), (11, ABORTABLE), (12, 0)])
def test_writing_without_announcing(
    client: Coordinated, who: Who, topic: str, version: int, code: int
) -> None:
    answer = client.produce(topic, who.batch(), version=version, transactional_id=who.name)
    assert answer.error_code == code
    assert client.state(who.name).transaction_state == ("Empty" if code else "Ongoing")
    assert client.fetch(at(topic, 0)).partitions[0].high_watermark == (0 if code else 1)


def test_the_second_protocol_begins_with_the_first_batch(
    client: Coordinated, who: Who, topic: str
) -> None:
    late = client.produce(topic, who.batch(3), version=12, transactional_id=who.name)
    assert late.error_code == OUT_OF_ORDER
    first = client.produce(topic, who.batch(0), version=12, transactional_id=who.name)
    assert (first.error_code, first.base_offset) == (0, 0)


def test_two_producers_in_one_request(
    client: Coordinated, who: Who, new_topic: Callable[..., str]
) -> None:
    topics = new_topic(), new_topic()
    other = who._replace(producer_id=who.producer_id + 1000)
    client.send_produce(
        [
            ProducePartition(topics[0], 0, who.batch()),
            ProducePartition(topics[1], 0, other.batch()),
        ],
        version=11,
        transactional_id=who.name,
    )
    answers = decode_produce_response(11, client.receive_frame())
    assert [answer.error_code for answer in answers] == [WRONG_ID, WRONG_ID]


def test_outside_of_an_open_transaction(client: Coordinated, who: Who, topic: str) -> None:
    assert client.add(who, (topic, 0)) == [0]
    assert client.produce(topic, who.batch(), transactional_id=who.name).error_code == 0
    plain = encode_batch(
        [Record(0, 0, None, b"x")],
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=1,
    )
    assert client.produce(topic, plain).error_code == WRONG_STATE


@pytest.mark.parametrize("commits", [True, False])
def test_ending_by_the_first_protocol(
    client: Coordinated, who: Who, topic: str, commits: bool
) -> None:
    assert client.end(who, commits=commits)[0] == WRONG_STATE
    assert client.add(who, (topic, 0)) == [0]
    assert client.produce(topic, who.batch(), transactional_id=who.name).error_code == 0
    assert client.end(who._replace(epoch=who.epoch + 1), commits=commits)[0] == FENCED
    assert client.end(who, commits=commits)[0] == 0
    assert client.end(who, commits=commits)[0] == 0, "again"
    assert client.end(who, commits=not commits)[0] == WRONG_STATE
    wanted = "CompleteCommit" if commits else "CompleteAbort"
    assert client.state(who.name).transaction_state == wanted


@pytest.mark.parametrize("commits", [True, False])
def test_ending_by_the_second_protocol(
    client: Coordinated, who: Who, topic: str, commits: bool
) -> None:
    assert client.end(who, commits=True, version=5)[0] == WRONG_STATE
    code, who = client.end(who, commits=False, version=5)
    assert code == 0, "nothing was begun, and it may be aborted"
    written = client.produce(topic, who.batch(), version=12, transactional_id=who.name)
    while written.error_code == 51:
        written = client.produce(topic, who.batch(), version=12, transactional_id=who.name)
    assert written.error_code == 0
    code, newer = client.end(who, commits=commits, version=5)
    assert (code, newer.producer_id, newer.epoch) == (0, who.producer_id, who.epoch + 1)
    assert client.end(who, commits=commits, version=5) == (0, newer), "again"
    assert client.end(who, commits=not commits, version=5)[0] == WRONG_STATE
    zombie = client.produce(topic, who.batch(1), version=12, transactional_id=who.name)
    assert zombie.error_code == OLD_EPOCH


def test_an_open_transaction_is_aborted_by_who_takes_over(
    client: Coordinated, who: Who, topic: str
) -> None:
    assert client.add(who, (topic, 0)) == [0]
    assert client.produce(topic, who.batch(), transactional_id=who.name).error_code == 0
    first = client.request(
        ApiKey.INIT_PRODUCER_ID, 4, **Who(who.name).values, transaction_timeout=10_000
    )
    assert first.error_code == 51
    code, newer = client.init(Who(who.name))
    assert (code, newer.epoch > who.epoch + 1) == (0, True)
    [fetched] = client.fetch(at(topic, 0), isolation=1).partitions
    assert [(entry.producer_id, entry.first_offset) for entry in fetched.aborted] == [
        (who.producer_id, 0)
    ]
    assert client.end(who, commits=True)[0] == FENCED


def test_a_marker_by_hand(client: Coordinated, who: Who, topic: str) -> None:
    _, who = client.init(Who(who.name))
    assert client.add(who, (topic, 0)) == [0]
    assert client.produce(topic, who.batch(), transactional_id=who.name).error_code == 0

    def mark(epoch: int, coordinator_epoch: int) -> int:
        answer = client.request(
            ApiKey.WRITE_TXN_MARKERS,
            1,
            markers=[
                {
                    "producer_id": who.producer_id,
                    "producer_epoch": epoch,
                    "transaction_result": False,
                    "coordinator_epoch": coordinator_epoch,
                    "topics": [{"name": topic, "partition_indexes": [0]}],
                }
            ],
        )
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    assert mark(who.epoch - 1, 9) == OLD_EPOCH
    assert client.fetch(at(topic, 0), isolation=1).partitions[0].last_stable_offset == 0
    assert mark(who.epoch, 9) == 0
    assert client.fetch(at(topic, 0), isolation=1).partitions[0].last_stable_offset == 2
    assert mark(who.epoch, 8) == COORDINATOR_FENCED


def test_transactions_are_listed(client: Coordinated, who: Who, topic: str) -> None:
    assert client.add(who, (topic, 0)) == [0]

    def list_transactions(version: int = 1, **filters: Any) -> set[str]:
        values = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
        answer = client.patient(ApiKey.LIST_TRANSACTIONS, version, **values)
        assert answer.error_code == 0
        return {state.transactional_id for state in answer.transaction_states} & {who.name}

    assert list_transactions() == {who.name}
    assert list_transactions(version=0, state_filters=["Ongoing"]) == {who.name}
    assert list_transactions(state_filters=["Empty"]) == set()
    assert list_transactions(producer_id_filters=[who.producer_id]) == {who.name}
    assert list_transactions(producer_id_filters=[who.producer_id + 1000]) == set()
    assert list_transactions(duration_filter=60_000) == set()
    assert client.state("nobody-knows-me").error_code == ID_NOT_FOUND
    assert client.end(who, commits=True)[0] == 0
