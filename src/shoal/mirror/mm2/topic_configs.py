"""Which settings a topic at the target should have, and what forbids to copy into it; pure.

Rules:
- A topic is created with what is set for the source's topic itself, unless an exclusion matches
  it (MirrorMaker 2's list by default). What the source only inherits is not sent: an older
  target may not know its name, and most often has the same value.
- `ALWAYS` is what decides what fits in and how long it stays: where the source inherits it and
  the target's value differs, it is set, but only if the target shows a config of that name.
- `compression.type` and `message.timestamp.type` are never copied. A topic is created with those
  values that let a batch keep its bytes and its timestamps, whatever the target's brokers
  default to.
- A target that is cleaned in a way in which the source is not, or that would compress again what
  is to be kept, is refused. A codec that a topic of this mirror inherits from the brokers is
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
# What lets a batch keep its bytes and its timestamps.
KEEPS_BATCHES: Final = {COMPRESSION: "producer", "message.timestamp.type": "CreateTime"}
_NEVER: Final = frozenset(KEEPS_BATCHES)

Entries = Mapping[str, ConfigEntry]


def creation_configs(source: Entries, excluded: Patterns) -> dict[str, str]:
    """What the target's topic is created with."""
    wanted = wanted_configs(source, excluded)
    own = {name: value for name, value in wanted.items() if source[name].is_topics_own}
    return own | KEEPS_BATCHES


def unknown_configs(sent: Iterable[str], refusal: str) -> list[str]:
    """Which of the configs that were sent a broker says it does not know."""
    if "unknown" not in refusal.lower():
        return []
    return [name for name in sent if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", refusal)]


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
    changes = values_to_set(wanted, target)
    for name, entry in target.items():
        is_ours = entry.is_topics_own and name not in _NEVER and not excluded.match(name)
        if is_ours and name not in wanted:
            changes.append(ConfigChange(name, None, Operation.DELETE))
    return changes


def values_to_set(wanted: Mapping[str, str], target: Entries) -> list[ConfigChange]:
    """What the target knows and has another value for."""
    return [
        ConfigChange(name, value)
        for name, value in wanted.items()
        if (entry := target.get(name)) is not None and entry.value != value
    ]


def inherits_codec(target: Entries) -> bool:
    """Whether the target's brokers, not the topic itself, ask for a codec."""
    entry = target.get(COMPRESSION)
    return entry is not None and entry.value != "producer" and not entry.is_topics_own


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
