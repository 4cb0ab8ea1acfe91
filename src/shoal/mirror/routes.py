"""From which partition of the source to which of the target; names may differ."""

from typing import NamedTuple

from shoal.model.topics import TopicPartition


class Route(NamedTuple):
    """One partition's way."""

    source: TopicPartition
    target: TopicPartition

    def __str__(self) -> str:
        if self.source == self.target:
            return str(self.source)
        return f"{self.source} to {self.target}"
