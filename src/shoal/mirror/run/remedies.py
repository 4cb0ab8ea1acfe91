"""What a user can do about a broker's refusal that no further try would change."""

from typing import Final

from shoal.client.codes import Code

_WRITE: Final = "allow the mirror's user to write to the topic (kafka-acls --allow-principal)"
_LIMIT: Final = "raise max.message.bytes of the target's topic to that of the source"
_TIMES: Final = "loosen message.timestamp.before.max.ms and …after.max.ms of the target's topic"
_BY_CODE: Final[dict[int, str]] = {
    Code.TOPIC_AUTHORIZATION_FAILED: _WRITE,
    Code.CLUSTER_AUTHORIZATION_FAILED: _WRITE,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "allow the mirror's user its transactional.id",
    Code.MESSAGE_TOO_LARGE: _LIMIT,
    Code.RECORD_LIST_TOO_LARGE: _LIMIT,
    Code.INVALID_TIMESTAMP: _TIMES,
}
LIMIT_REMEDY: Final = f"{_LIMIT}; it is tried again, and other partitions go on"
_START_AGAIN: Final = "then start the mirror again; other partitions go on"


def remedy_for(code: int) -> str:
    """What would let the target take what it refused for good."""
    cure = _BY_CODE.get(code, "look at the topic's settings and at the log of its leader")
    return f"{cure}, {_START_AGAIN}"


def remedy_for_seeing(code: int) -> str:
    """What would let a cluster show a topic."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return "allow the mirror's user to describe the topic (kafka-acls --allow-principal)"
    return "it is tried again; look at the cluster's logs if that does not help"


def remedy_for_reading(code: int) -> str:
    """What would let the source give what it refused for good."""
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        cure = "allow the mirror's user to read the topic (kafka-acls --allow-principal)"
    else:
        cure = "look at the log of the partition's leader at the source"
    return f"{cure}, {_START_AGAIN}"
