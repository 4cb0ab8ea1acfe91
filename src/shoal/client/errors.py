"""The errors of the client.

    ClientError                  `shoal.model.errors`
    ├── ConnectionLost           the connection ended; `sent`: whether the request was sent
    ├── RequestTimedOut          no answer in time; `sent` as above
    ├── NoBrokersAvailable       no address of the bootstrap list answers; says why for each
    ├── AuthenticationFailed     TLS or SASL failed; a retry does not help
    ├── UnsupportedByBroker      the broker lacks an API, a version or a feature
    ├── ClientClosed             the client, session or connection was closed by its owner
    ├── TopicRecreated           the topic was deleted and created again
    └── KafkaError               the broker answered with an error code
        ├── OffsetOutOfRange     1
        ├── OutOfSequence        45, 59
        ├── ProducerFenced       47, 90: another producer has taken over, stop
        └── TransactionFailed    120, or any failure that leaves only `abort`

A `KafkaError` has the code, its name, whether a retry may help (`retriable`), whether the metadata
must be refreshed first (`invalidates_metadata`), and the topic, partition and offset.
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
    """The connection ended. `sent`: whether the request may have reached the broker."""

    def __init__(self, message: str, *, sent: bool, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.sent = sent


class RequestTimedOut(ClientError, UnreachableError):
    """No answer in time. `sent`: whether the request may have reached the broker."""

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
    """The broker refused TLS or SASL, or its certificate is not trusted."""


class UnsupportedByBroker(ClientError):
    """The broker lacks an API, a version of it, or a feature."""

    blame: Blame = "remote"


class ClientClosed(ClientError):
    """The client, session or connection was used after `close`."""


class TopicRecreated(ClientError):
    """The topic was deleted and created again: offsets of the old topic are not valid."""

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
    """The log does not contain this offset: it is below the log start or above the log end."""


class OutOfSequence(KafkaError):
    """The broker expects another sequence number, or does not know this producer."""


class ProducerFenced(KafkaError):
    """A newer producer with the same id has fenced this one; it can send nothing more."""


class TransactionFailed(KafkaError):
    """The transaction can no longer be committed; abort it."""


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
    """The error for a code; `message` is the message of the broker."""
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
    reason = message or facts.meaning
    return (
        (f"{where}: " if where else "")
        + f"{facts.name} ({code})"
        + (f": {reason}" if reason else "")
    )
