"""What consumers say when they join: which topics they want. Kafka's consumer protocol.

The broker looks at it only to know whether offsets of a topic are still wanted.
"""

from shoal.wire.errors import WireError
from shoal.wire.primitives import INT16, Cursor


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics of a subscription of any version; None if it is none."""
    cursor = Cursor(memoryview(metadata), flexible=False)
    try:
        version = cursor.fixed(INT16, "version")[0]
        if version < 0:
            return None
        count = cursor.count("topics", least_size=2)
        return {cursor.string("topic") for _ in range(count)}
    except WireError:
        return None
