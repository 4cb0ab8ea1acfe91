"""WriteTxnMarkers (27), versions 1 and 2.

Behaviour
- Writes transaction markers for a coordinator, or for an administrator who ends a hanging
  transaction. The response is sent when all in-sync replicas have them.
- INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED: see `admission`.

Versions
- 1 flexible. 2 has the transaction version: in the second protocol the epoch of a marker is above
  that of its transaction.
"""

from typing import TYPE_CHECKING

from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.transactions.markers import Marker, MarkerResults, group_by_topic
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.transactions import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersRequestWritableTxnMarker,
        WriteTxnMarkersResponse,
        WriteTxnMarkersResponseWritableTxnMarkerTopic,
    )

_FIRST_WITH_TRANSACTION_VERSION = 2


async def handle(
    core: BrokerCore, request: "ApiRequest[WriteTxnMarkersRequest, WriteTxnMarkersResponse]"
) -> Answer:
    items = [(_marker(one, request.version), _partitions(one)) for one in request.body().markers]
    written = await core.transactions.write_markers(items)
    return request.answer(
        {
            "markers": [
                {"producer_id": marker.producer_id, "topics": _topics(result)}
                for (marker, _), result in zip(items, written, strict=True)
            ]
        }
    )


def _marker(one: "WriteTxnMarkersRequestWritableTxnMarker", api_version: int) -> Marker:
    return Marker(
        one.producer_id,
        one.producer_epoch,
        one.transaction_result,
        one.coordinator_epoch,
        one.transaction_version if api_version >= _FIRST_WITH_TRANSACTION_VERSION else 0,
    )


def _partitions(one: "WriteTxnMarkersRequestWritableTxnMarker") -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in one.topics
        for index in topic.partition_indexes
    ]


def _topics(result: MarkerResults) -> "list[WriteTxnMarkersResponseWritableTxnMarkerTopic]":
    return [
        {
            "name": name,
            "partitions": [
                {"partition_index": index, "error_code": result[TopicPartition(name, index)]}
                for index in indexes
            ],
        }
        for name, indexes in group_by_topic(result).items()
    ]


API = register(ApiKey.WRITE_TXN_MARKERS, 1, 2, handle)
