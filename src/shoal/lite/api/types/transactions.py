"""Requests and answers for transactions: written by scripts/api_types.py.

Only the type checker uses this module. A decoded request is an instance of kio's class of its
version, and an answer is a dictionary that `ApiRequest.answer` encodes. A type has the fields of
all versions that are served; a comment names the versions of a field that not all of them have.
Times in answers are whole numbers of ms.
"""

import datetime as dt
from collections.abc import Collection
from typing import Required, TypedDict


class InitProducerIdRequest:
    transactional_id: str | None
    transaction_timeout: dt.timedelta
    producer_id: int  # versions 3 to 5
    producer_epoch: int  # versions 3 to 5


class InitProducerIdResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    producer_id: int
    producer_epoch: Required[int]


class AddPartitionsToTxnRequestTopic:
    name: str
    partitions: tuple[int, ...]


class AddPartitionsToTxnRequestTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: tuple[AddPartitionsToTxnRequestTopic, ...]


class AddPartitionsToTxnRequest:
    v3_and_below_transactional_id: str  # versions 0 to 3
    v3_and_below_producer_id: int  # versions 0 to 3
    v3_and_below_producer_epoch: int  # versions 0 to 3
    v3_and_below_topics: tuple[AddPartitionsToTxnRequestTopic, ...]  # versions 0 to 3
    transactions: tuple[AddPartitionsToTxnRequestTransaction, ...]  # versions 4 to 5


class AddPartitionsToTxnResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    partition_error_code: Required[int]


class AddPartitionsToTxnResponseTopic(TypedDict, total=False):
    name: Required[str]
    results_by_partition: Required[Collection[AddPartitionsToTxnResponsePartition]]


class AddPartitionsToTxnResponseResult(TypedDict, total=False):
    transactional_id: Required[str]
    topic_results: Required[Collection[AddPartitionsToTxnResponseTopic]]


class AddPartitionsToTxnResponse(TypedDict, total=False):
    throttle_time: int
    results_by_topic_v3_and_below: Collection[AddPartitionsToTxnResponseTopic]  # versions 0 to 3
    error_code: int  # versions 4 to 5
    results_by_transaction: Collection[AddPartitionsToTxnResponseResult]  # versions 4 to 5


class AddOffsetsToTxnRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class AddOffsetsToTxnResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]


class EndTxnRequest:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class EndTxnResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    producer_id: int  # version 5
    producer_epoch: int  # version 5


class WriteTxnMarkersRequestWritableTxnMarkerTopic:
    name: str
    partition_indexes: tuple[int, ...]


class WriteTxnMarkersRequestWritableTxnMarker:
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: tuple[WriteTxnMarkersRequestWritableTxnMarkerTopic, ...]
    coordinator_epoch: int
    transaction_version: int  # version 2


class WriteTxnMarkersRequest:
    markers: tuple[WriteTxnMarkersRequestWritableTxnMarker, ...]


class WriteTxnMarkersResponseWritableTxnMarkerPartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]


class WriteTxnMarkersResponseWritableTxnMarkerTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[WriteTxnMarkersResponseWritableTxnMarkerPartition]]


class WriteTxnMarkersResponseWritableTxnMarker(TypedDict, total=False):
    producer_id: Required[int]
    topics: Required[Collection[WriteTxnMarkersResponseWritableTxnMarkerTopic]]


class WriteTxnMarkersResponse(TypedDict, total=False):
    markers: Required[Collection[WriteTxnMarkersResponseWritableTxnMarker]]


class TxnOffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int  # versions 2 to 5


class TxnOffsetCommitRequestTopic:
    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


class TxnOffsetCommitRequest:
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[TxnOffsetCommitRequestTopic, ...]
    generation_id: int  # versions 3 to 5
    member_id: str  # versions 3 to 5
    group_instance_id: str | None  # versions 3 to 5


class TxnOffsetCommitResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]


class TxnOffsetCommitResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[TxnOffsetCommitResponsePartition]]


class TxnOffsetCommitResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[TxnOffsetCommitResponseTopic]]


class DescribeProducersRequestTopic:
    name: str
    partition_indexes: tuple[int, ...]


class DescribeProducersRequest:
    topics: tuple[DescribeProducersRequestTopic, ...]


class DescribeProducersResponseProducerState(TypedDict, total=False):
    producer_id: Required[int]
    producer_epoch: Required[int]
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: Required[int]
    current_txn_start_offset: int


class DescribeProducersResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]
    error_message: str | None
    active_producers: Required[Collection[DescribeProducersResponseProducerState]]


class DescribeProducersResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[DescribeProducersResponsePartition]]


class DescribeProducersResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[DescribeProducersResponseTopic]]


class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]


class DescribeTransactionsResponseTopicData(TypedDict, total=False):
    topic: Required[str]
    partitions: Collection[int]


class DescribeTransactionsResponseTransactionState(TypedDict, total=False):
    error_code: Required[int]
    transactional_id: Required[str]
    transaction_state: Required[str]
    transaction_timeout: Required[int]
    transaction_start_time: Required[int]
    producer_id: Required[int]
    producer_epoch: Required[int]
    topics: Required[Collection[DescribeTransactionsResponseTopicData]]


class DescribeTransactionsResponse(TypedDict, total=False):
    throttle_time: int
    transaction_states: Required[Collection[DescribeTransactionsResponseTransactionState]]


class ListTransactionsRequest:
    state_filters: tuple[str, ...]
    producer_id_filters: tuple[int, ...]
    duration_filter: int  # versions 1 to 2
    transactional_id_pattern: str | None  # version 2


class ListTransactionsResponseTransactionState(TypedDict, total=False):
    transactional_id: Required[str]
    producer_id: Required[int]
    transaction_state: Required[str]


class ListTransactionsResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    unknown_state_filters: Collection[str]
    transaction_states: Required[Collection[ListTransactionsResponseTransactionState]]
