"""The requests of a transactional producer over one plain socket, each sent once."""

import time
from typing import Any, NamedTuple

from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.error_codes import Code
from shoal.wire.messages import encode_request, request_class
from shoal.wire.records.records import Record, encode_batch
from support.lite.client import PlainClient

NEVER_MS = 600_000


class Producer(NamedTuple):
    """A transactional id with the producer id and epoch of a request."""

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


class TransactionClient(PlainClient):
    """The requests of transactional producers, each sent once."""

    def init(self, producer: Producer, timeout_ms: int = NEVER_MS) -> tuple[Code, Producer]:
        answer = self.request(
            ApiKey.INIT_PRODUCER_ID, 5, **producer.values, transaction_timeout=timeout_ms
        )
        found = Producer(producer.name, answer.producer_id, answer.producer_epoch)
        return Code(answer.error_code), found

    def add(self, producer: Producer, topic: str, *, version: int, verifies: bool = False) -> Code:
        topics = [{"name": topic, "partitions": [0]}]
        if version < 4:
            older = {f"v3_and_below_{name}": value for name, value in producer.values.items()}
            answer = self.request(
                ApiKey.ADD_PARTITIONS_TO_TXN, version, **older, v3_and_below_topics=topics
            )
            [result] = answer.results_by_topic_v3_and_below
        else:
            values = {**producer.values, "verify_only": verifies, "topics": topics}
            answer = self.request(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[values])
            if answer.error_code:
                return Code(answer.error_code)
            [result] = answer.results_by_transaction[0].topic_results
        return Code(result.results_by_partition[0].partition_error_code)

    def add_offsets(self, producer: Producer, *, version: int) -> Code:
        answer = self.request(
            ApiKey.ADD_OFFSETS_TO_TXN, version, **producer.values, group_id=producer.name
        )
        return Code(answer.error_code)

    def commit_offsets(self, producer: Producer, topic: str, *, version: int) -> Code:
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        answer = self.request(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            **producer.values,
            group_id=producer.name,
            generation_id_or_member_epoch=-1,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        return Code(answer.topics[0].partitions[0].error_code)

    def write(self, producer: Producer, topic: str, *, version: int, sequence: int) -> Code:
        batch = encode_batch(
            [Record(0, time.time_ns() // 1_000_000, None, b"value")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        answer = self.produce(topic, batch, version=version, transactional_id=producer.name)
        return Code(answer.error_code)

    def end(self, producer: Producer, *, commits: bool, version: int) -> tuple[Code, Producer]:
        answer = self.request(ApiKey.END_TXN, version, **producer.values, committed=commits)
        found = (getattr(answer, name, -1) for name in ("producer_id", "producer_epoch"))
        return Code(answer.error_code), Producer(producer.name, *found)

    def send_only(self, key: ApiKey, version: int, /, **values: Any) -> None:
        """Send a request whose answer does not come while the third broker is paused."""
        message = build(request_class(key, version), values)
        self.send_frame(encode_request(message, correlation_id=0, client_id="test"))

    def describe(self, name: str) -> Any:
        answer = self.request(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name])
        return answer.transaction_states[0]

    def has_open_transaction(self, producer_id: int, topic: str) -> bool:
        """Whether the first partition of a topic has a transaction of a producer open."""
        topics = [{"name": topic, "partition_indexes": [0]}]
        answer = self.request(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)
        return any(
            producer.producer_id == producer_id and producer.current_txn_start_offset >= 0
            for producer in answer.topics[0].partitions[0].active_producers
        )
