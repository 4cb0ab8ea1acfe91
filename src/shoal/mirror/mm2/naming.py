"""The names of topics at the target; pure.

Rules:
- `identity` keeps names; `default` prepends the source's alias and a separator: the two policies of
  MirrorMaker 2. A rename of a single topic takes precedence over both.
- With `default`, a topic that already comes from the target's alias, over any number of hops, is
  not copied back: records would circulate forever. With `identity`, names do not show where a
  topic comes from.
- Internal topics (Kafka's, Connect's, MirrorMaker's and shoal's own) are never copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from shoal.model.errors import ConfigError
from shoal.model.topics import LONGEST_TOPIC_NAME, is_topic_name

IDENTITY: Final = "identity"
PREFIX: Final = "default"
POLICIES: Final = (IDENTITY, PREFIX)
HEARTBEATS: Final = "heartbeats"


@dataclass(frozen=True, slots=True)
class Naming:
    """How one flow names topics at the target."""

    policy: Annotated[str, "policy"] = IDENTITY
    source_alias: Annotated[str, "source_alias"] = "source"
    target_alias: Annotated[str, "target_alias"] = "target"
    separator: Annotated[str, "separator"] = "."
    renames: Annotated[Mapping[str, str], "renames"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(
                f"{self.policy!r} is not a valid replication policy",
                remedy=f"use one of {', '.join(POLICIES)}",
            )
        if not self.separator and self.policy == PREFIX:
            raise ConfigError("the separator of a replication policy must not be empty")
        for topic, name in self.renames.items():
            _check_target_name(topic, name)

    @property
    def keeps_names(self) -> bool:
        return self.policy == IDENTITY and not self.renames

    def target_of(self, topic: str) -> str:
        """Return the name of a source topic at the target."""
        if topic in self.renames:
            return self.renames[topic]
        if self.policy == PREFIX or self.is_heartbeats(topic):
            return f"{self.source_alias}{self.separator}{topic}"
        return topic

    def is_heartbeats(self, topic: str) -> bool:
        return topic == HEARTBEATS or topic.endswith(f"{self.separator}{HEARTBEATS}")

    def is_cycle(self, topic: str) -> bool:
        """Whether a source topic came from the target."""
        if self.policy == IDENTITY and not self.is_heartbeats(topic):
            return False
        *aliases, _ = topic.split(self.separator)
        return self.target_alias in aliases

    def is_own_copy(self, topic: str) -> bool:
        """Whether the mirror itself gives copies such a name."""
        is_renamed = topic in self.renames.values()
        return is_renamed or (
            self.policy == PREFIX and topic.startswith(f"{self.source_alias}{self.separator}")
        )


def is_internal(topic: str) -> bool:
    return topic.startswith(("__", ".")) or topic.endswith((".internal", "-internal"))


def _check_target_name(topic: str, name: str) -> None:
    if not is_topic_name(name):
        raise ConfigError(
            f"cannot rename topic {topic!r}: {name!r} is not a valid topic name",
            remedy=f"use up to {LONGEST_TOPIC_NAME} letters, digits, '.', '_' and '-'",
        )
    if is_internal(name):
        raise ConfigError(
            f"cannot rename topic {topic!r} to {name!r}: that is the name of an internal topic",
            remedy="choose a name that does not begin with '__' or '.', or end with 'internal'",
        )
