"""Which settings a topic at the target should have, and what forbids to copy into it; pure.

Rules:
- `ALWAYS` is what decides what fits in and how long it stays: it is copied also where the
  source only inherits it. Whatever else was set for the source's topic itself is copied unless
  an exclusion matches it (MirrorMaker 2's list by default).
- `compression.type` and `message.timestamp.type` stay the target's own: only then a batch keeps
  its bytes and its timestamps.
- A target that is cleaned in a way in which the source is not, or that would compress anew what
  is to be kept, is refused.
"""

from collections.abc import Mapping
from typing import Final

from shoal.client.admin import ConfigChange, ConfigEntry, Operation
from shoal.mirror.patterns import Patterns
from shoal.model.errors import ConfigError

ALWAYS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "retention.bytes",
    "retention.ms",
)
CLEANUP: Final = "cleanup.policy"
COMPRESSION: Final = "compression.type"
_NEVER: Final = frozenset({COMPRESSION, "message.timestamp.type"})

Entries = Mapping[str, ConfigEntry]


def wanted_configs(source: Entries, excluded: Patterns) -> dict[str, str]:
    """What the target's topic should be set to."""
    return {
        name: entry.value
        for name, entry in source.items()
        if entry.value is not None
        and name not in _NEVER
        and not excluded.match(name)
        and (name in ALWAYS or entry.is_topics_own)
    }


def changes_for(
    wanted: Mapping[str, str], target: Entries, excluded: Patterns
) -> list[ConfigChange]:
    """What must be done so that the target's topic is as wanted."""
    changes = []
    for name, value in wanted.items():
        entry = target.get(name)
        if entry is not None and entry.value != value:
            changes.append(ConfigChange(name, value))
    for name, entry in target.items():
        is_ours = entry.is_topics_own and name not in _NEVER and not excluded.match(name)
        if is_ours and name not in wanted:
            changes.append(ConfigChange(name, None, Operation.DELETE))
    return changes


def check_compatible(topic: str, source: Entries, target: Entries) -> None:
    """Raises if copying into the target's topic would change or lose what is copied."""
    ours, theirs = _value(source, CLEANUP), _value(target, CLEANUP)
    if ours is not None and theirs is not None and not _policies(theirs) <= _policies(ours):
        raise ConfigError(
            f"the target's topic {topic} has {CLEANUP} {theirs}, the source's has {ours}: "
            "the target would delete records that the source keeps",
            remedy=f"set {CLEANUP}={ours} at the target, or mirror into another topic",
        )
    codec = _value(target, COMPRESSION)
    if codec not in (None, "producer", _value(source, COMPRESSION)):
        raise ConfigError(
            f"the target's topic {topic} has {COMPRESSION} {codec}: "
            "it would compress every batch anew",
            remedy=f"set {COMPRESSION}=producer at the target, or mirror into another topic",
        )


def _value(entries: Entries, name: str) -> str | None:
    entry = entries.get(name)
    return None if entry is None else entry.value


def _policies(value: str) -> set[str]:
    return {each.strip() for each in value.split(",")}
