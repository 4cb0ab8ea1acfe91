"""Errors of a target that a retry does not solve: what to do about them."""

from typing import Final

from shoal.client.codes import Code

_WRITE: Final = "allow the mirror's principal to write to the topic (kafka-acls --allow-principal)"
_LIMIT: Final = "raise max.message.bytes of the target topic to that of the source"
_TIMES: Final = "raise message.timestamp.before.max.ms and …after.max.ms of the target topic"
_BY_CODE: Final[dict[int, str]] = {
    Code.TOPIC_AUTHORIZATION_FAILED: _WRITE,
    Code.CLUSTER_AUTHORIZATION_FAILED: _WRITE,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "allow the mirror's principal to use its transactional.id"
    ),
    Code.INVALID_PRODUCER_EPOCH: (
        "run only one mirror with this name: another process copies a topic that was created again"
    ),
    Code.MESSAGE_TOO_LARGE: _LIMIT,
    Code.RECORD_LIST_TOO_LARGE: _LIMIT,
    Code.INVALID_TIMESTAMP: _TIMES,
}
LIMIT_REMEDY: Final = f"{_LIMIT}; the record is retried, and other partitions continue"
_START_AGAIN: Final = "then restart the mirror; other partitions continue"


def remedy_for(code: int) -> str:
    """What to do about a batch that the target refuses permanently."""
    action = _BY_CODE.get(code, "check the configs of the topic and the log of its leader")
    return f"{action}, {_START_AGAIN}"


def remedy_for_seeing(code: int) -> str:
    """What to do about a topic that a cluster does not describe."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return "allow the mirror's principal to describe the topic (kafka-acls --allow-principal)"
    return "the topic is retried; if the error stays, check the logs of the cluster"


def remedy_for_reading(code: int) -> str:
    """What to do about a partition that the source refuses to read permanently."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        action = "allow the mirror's principal to read the topic (kafka-acls --allow-principal)"
    else:
        action = "check the log of the partition's leader at the source"
    return f"{action}, {_START_AGAIN}"
