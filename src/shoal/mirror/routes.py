"""Which source partition is copied to which target partition; the topic names may differ."""

from typing import NamedTuple

from shoal.model.topics import TopicPartition


class Route(NamedTuple):
    """A source partition and the target partition that it is copied to."""

    source: TopicPartition
    target: TopicPartition

    def __str__(self) -> str:
        if self.source == self.target:
            return str(self.source)
        return f"{self.source} to {self.target}"
