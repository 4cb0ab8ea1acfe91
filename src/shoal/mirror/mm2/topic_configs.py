"""Decides which configs a target topic should have, and which make it unusable; pure.

Rules:
- A topic is created with the configs that are set on the source topic itself, except those that
  match the exclude list (MirrorMaker 2's by default). Inherited values are not sent: an older
  target may not know the config, and usually has the same value.
- `ALWAYS` lists configs that limit which records fit and how long they stay: if the source inherits
  a value and the target's differs, it is set, but only if the target reports a config of that name.
- `compression.type` and `message.timestamp.type` are never copied. A topic is created with the
  values that let a batch keep its bytes and timestamps, regardless of the target's broker
  defaults.
- A target topic is refused if its cleanup policy would delete records that the source keeps, or if
  it would recompress batches. A codec that a topic of this mirror inherits from the brokers is
  overridden instead.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from shoal.client.admin import ConfigChange, ConfigEntry, Operation
from shoal.mirror.mm2.patterns import Patterns
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
# With these a batch keeps its bytes and its timestamps.
KEEPS_BATCHES: Final = {COMPRESSION: "producer", "message.timestamp.type": "CreateTime"}
_NEVER: Final = frozenset(KEEPS_BATCHES)

Entries = Mapping[str, ConfigEntry]


def creation_configs(source: Entries, excluded: Patterns) -> dict[str, str]:
    """The configs with which the target topic is created."""
    wanted = select_configs(source, excluded)
    own = {name: value for name, value in wanted.items() if source[name].is_topics_own}
    return own | KEEPS_BATCHES


def unknown_configs(sent: Iterable[str], refusal: str) -> list[str]:
    """Find the sent configs that the broker's error message calls unknown."""
    if "unknown" not in refusal.lower():
        return []
    return [name for name in sent if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", refusal)]


def select_configs(source: Entries, excluded: Patterns) -> dict[str, str]:
    """Select the source configs that the target topic should have."""
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
    """The changes that give the target topic the wanted configs."""
    changes = values_to_set(wanted, target)
    for name, entry in target.items():
        is_ours = entry.is_topics_own and name not in _NEVER and not excluded.match(name)
        if is_ours and name not in wanted:
            changes.append(ConfigChange(name, None, Operation.DELETE))
    return changes


def values_to_set(wanted: Mapping[str, str], target: Entries) -> list[ConfigChange]:
    """The wanted configs that the target has with another value."""
    return [
        ConfigChange(name, value)
        for name, value in wanted.items()
        if (entry := target.get(name)) is not None and entry.value != value
    ]


def inherits_codec(target: Entries) -> bool:
    """Whether the codec of a topic is inherited from the brokers' default."""
    entry = target.get(COMPRESSION)
    return entry is not None and entry.value != "producer" and not entry.is_topics_own


def check_compatible(topic: str, source: Entries, target: Entries) -> None:
    """Raise if the configs of the target topic would change or delete copied records."""
    ours, theirs = _value(source, CLEANUP), _value(target, CLEANUP)
    if ours is not None and theirs is not None and not _policies(theirs) <= _policies(ours):
        raise ConfigError(
            f"the target topic {topic} has {CLEANUP}={theirs}, the source topic has {ours}: "
            "the target would delete records that the source keeps",
            remedy=f"set {CLEANUP}={ours} at the target, or mirror into another topic",
        )
    codec = _value(target, COMPRESSION)
    if codec not in (None, "producer", _value(source, COMPRESSION)):
        raise ConfigError(
            f"the target topic {topic} has {COMPRESSION}={codec}: "
            "the target would recompress every batch",
            remedy=f"set {COMPRESSION}=producer at the target, or mirror into another topic",
        )


def _value(entries: Entries, name: str) -> str | None:
    entry = entries.get(name)
    return None if entry is None else entry.value


def _policies(value: str) -> set[str]:
    return {each.strip() for each in value.split(",")}
