"""What nodes and clients say to each other, beside the messages of the quorum.

Requests are numbered by who asks; an answer that nobody still waits for is ignored, as one
that comes on a connection that was closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.requests import ControllerRequest
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.log import SimulatedBatch
from shoal.lite.storage.header import BatchHeader
from shoal.wire.fetch import FetchRequest, PartitionAnswer


@dataclass(slots=True)
class ControllerCall:
    """A broker or an administrator asks the active controller."""

    number: int
    request: ControllerRequest[Any]


@dataclass(slots=True)
class ControllerReply:
    number: int
    code: Code
    answer: Any = None


@dataclass(slots=True)
class FetchCall:
    """A follower asks its leader."""

    number: int
    request: FetchRequest


@dataclass(slots=True)
class FetchReply:
    """The records of an answer are sequences of batches."""

    number: int
    session_id: int
    code: Code
    answers: Sequence[PartitionAnswer[Any]] = ()


@dataclass(slots=True)
class FetchRelease:
    """A follower has new partitions to fetch: the leader should not hold its fetch longer."""

    number: int


@dataclass(slots=True)
class ProduceMessage:
    number: int
    key: Key
    header: BatchHeader
    acks: int


@dataclass(slots=True)
class ProduceReply:
    number: int
    code: Code
    batch: SimulatedBatch | None = None


# TCP never hands a request over twice; members of the quorum and fetchers claim to bear it.
COPIED = (FetchCall, FetchReply, FetchRelease)
