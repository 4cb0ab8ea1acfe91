"""Counts what clients send and read, by topic and by API.

Rules of this file:
- It is on the path of every request, so it is a lookup and a few additions.
- A topic that no longer exists keeps its counters while its broker lives; at most `_MOST_TOPICS`
  are counted by name, the others together as `_OTHERS`.
"""

from typing import Final

_MOST_TOPICS: Final = 10_000
_OTHERS: Final = "(others)"
# Requests with this key or a higher one are counted together: COMPARE_AND_APPEND is the only one.
HIGHEST_KEY: Final = 127


class TopicTraffic:
    """The counters of one topic."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "produce_requests",
        "records_in",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.records_in = 0
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0


class Traffic(dict[str, TopicTraffic]):
    """The counters of all topics, created when they are first used; and requests by API key."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = [0] * (HIGHEST_KEY + 1)

    def __missing__(self, topic: str) -> TopicTraffic:
        if len(self) >= _MOST_TOPICS and topic != _OTHERS:
            return self[_OTHERS]
        counts = self[topic] = TopicTraffic()
        return counts

    def count_request(self, api_key: int) -> None:
        self.requests[min(HIGHEST_KEY, api_key)] += 1

    def count_produced(self, topic: str, size_bytes: int, records: int) -> None:
        counts = self[topic]
        counts.bytes_in += size_bytes
        counts.records_in += records
        counts.produce_requests += 1

    def count_refused_produce(self, topic: str) -> None:
        counts = self[topic]
        counts.produce_requests += 1
        counts.failed_produce_requests += 1
