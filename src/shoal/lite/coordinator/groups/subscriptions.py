"""Decodes the subscription that consumers send when they join (Kafka's consumer protocol).

The broker uses it only to know whether offsets of a topic are still in use.
"""

from shoal.wire.errors import WireError
from shoal.wire.primitives import INT16, Cursor


def decode_subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a subscription of any version; None if it is not valid."""
    cursor = Cursor(memoryview(metadata), flexible=False)
    try:
        version = cursor.unpack(INT16, "version")[0]
        if version < 0:
            return None
        count = cursor.count("topics", least_size=2)
        return {cursor.string("topic") for _ in range(count)}
    except WireError:
        return None
