"""What a client can run into.

    ClientError                  `shoal.model.errors`
    ├── ConnectionLost           the connection ended; `sent`: whether the request had left us
    ├── RequestTimedOut          no answer in time; `sent` as above
    ├── NoBrokersAvailable       no address of the bootstrap list answers; says why for each
    ├── AuthenticationFailed     TLS or SASL refused; trying again does not help
    ├── UnsupportedByBroker      the broker lacks an API, a version or a feature
    ├── ClientClosed             the client, session or connection was closed by its owner
    ├── TopicRecreated           the topic behind a name is not the one it was
    └── KafkaError               the broker answered with an error code
        ├── OffsetOutOfRange     1
        ├── OutOfSequence        45, 59
        ├── ProducerFenced       47, 90: another producer has taken over, stop
        └── TransactionFailed    120, or any failure that leaves only `abort`

A `KafkaError` carries the code, its name, whether another try may help (`retriable`), whether
to look at the metadata first (`invalidates_metadata`), and the topic, partition and offset.
`ConnectionLost`, `RequestTimedOut` and `NoBrokersAvailable` are `UnreachableError`s too.
"""

from shoal.client.codes import INVALIDATES_METADATA, Code, facts_of
from shoal.model.errors import Blame, ClientError, UnreachableError

__all__ = [
    "AuthenticationFailed",
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "KafkaError",
    "NoBrokersAvailable",
    "OffsetOutOfRange",
    "OutOfSequence",
    "ProducerFenced",
    "RequestTimedOut",
    "TopicRecreated",
    "TransactionFailed",
    "UnsupportedByBroker",
    "error_for",
]


class ConnectionLost(ClientError, UnreachableError):
    """The connection ended. `sent` tells whether the request may have reached the broker."""

    def __init__(self, message: str, *, sent: bool, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.sent = sent


class RequestTimedOut(ClientError, UnreachableError):
    """No answer in time. `sent` tells whether the request may have reached the broker."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class NoBrokersAvailable(ClientError, UnreachableError):
    """No address answers; `reasons` has (address, why) for each."""

    def __init__(self, reasons: list[tuple[str, str]]) -> None:
        listed = "; ".join(f"{address}: {why}" for address, why in reasons)
        super().__init__(
            f"no broker answers ({listed})",
            remedy="check bootstrap.servers, security.protocol and that the cluster is up",
        )
        self.reasons = reasons


class AuthenticationFailed(ClientError):
    """TLS or SASL refused us, or we refused the broker's certificate."""


class UnsupportedByBroker(ClientError):
    """The broker lacks an API, a version of it, or a feature."""

    blame: Blame = "remote"


class ClientClosed(ClientError):
    """Used after `close`."""


class TopicRecreated(ClientError):
    """The topic behind a name is not the one it was: its offsets mean something else now."""

    blame: Blame = "remote"


class KafkaError(ClientError):
    """A broker answered with an error code."""

    blame: Blame = "remote"

    def __init__(
        self,
        code: int,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        message: str | None = None,
    ) -> None:
        facts = facts_of(code)
        super().__init__(_sentence(code, topic, partition, offset, message=message))
        self.code = code
        self.name = facts.name
        self.retriable = facts.retriable
        self.invalidates_metadata = code in INVALIDATES_METADATA
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OffsetOutOfRange(KafkaError):
    """The log does not hold this offset (any more, or yet)."""


class OutOfSequence(KafkaError):
    """The broker expects another sequence number, or none of this producer."""


class ProducerFenced(KafkaError):
    """Another producer has taken over this id; nothing more can be sent under it."""


class TransactionFailed(KafkaError):
    """The transaction cannot be committed any more; abort it."""


_CLASSES: dict[int, type[KafkaError]] = {
    Code.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfSequence,
    Code.UNKNOWN_PRODUCER_ID: OutOfSequence,
    Code.INVALID_PRODUCER_EPOCH: ProducerFenced,
    Code.PRODUCER_FENCED: ProducerFenced,
    Code.TRANSACTION_ABORTABLE: TransactionFailed,
}


def error_for(
    code: int,
    *,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    message: str | None = None,
) -> KafkaError:
    """The error for a code; `message` is what the broker said besides."""
    cls = _CLASSES.get(code, KafkaError)
    return cls(code, topic=topic, partition=partition, offset=offset, message=message)


def _sentence(
    code: int,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    *,
    message: str | None,
) -> str:
    facts = facts_of(code)
    where = topic or ""
    if partition is not None:
        where += f"-{partition}"
    if offset is not None:
        where += f" at offset {offset}"
    said = message or facts.meaning
    return (
        (f"{where}: " if where else "") + f"{facts.name} ({code})" + (f": {said}" if said else "")
    )
