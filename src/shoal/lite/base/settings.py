"""Every setting of topics and brokers, from two tables: its name, type, default and range.

The tables are those of Apache Kafka 4.3.1, all of them, in `settings_of_topics.tsv` and
`settings_of_brokers.tsv`: clients and mirrors copy settings around, and must find them again.

- `default`: `null` is none, `''` is an empty text. Where ours is not Apache Kafka's,
  `docs/gaps.md` says so.
- `range`: `least..most`, or choices separated by `|`.
- `broker` (topics only): the broker's names for the setting, the strongest first.
- `change` (brokers only): `start` cannot change while the broker runs, `cluster` can, for one
  broker or for all, `per-broker` only for one.
- `flags`: `acts` has an effect in Kafka Lite, the others are kept and shown; `secret` is not
  shown; `hidden` is not listed.
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from shoal.lite.base.codes import Code, Refused

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
SHORT_MAX: Final = (1 << 15) - 1


class Kind(IntEnum):
    """Types of settings, by the numbers that DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """Where a value comes from, by the numbers that DescribeConfigs sends."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Change(IntEnum):
    """How a broker's setting can change."""

    START = 0
    CLUSTER = 1
    PER_BROKER = 2


_MOST = {Kind.INT: INT_MAX, Kind.SHORT: SHORT_MAX, Kind.LONG: LONG_MAX}
_TEXTS = {Kind.STRING, Kind.CLASS, Kind.PASSWORD}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `synonyms` are the broker's names for a topic's setting."""

    name: str
    kind: Kind
    default: str | None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    change: Change = Change.CLUSTER
    acts: bool = False
    is_secret: bool = False
    is_hidden: bool = False

    @property
    def synonym(self) -> str | None:
        """The broker's name for a topic's setting."""
        return self.synonyms[0] if self.synonyms else None

    @property
    def documentation(self) -> str:
        """What Kafka Lite does with it."""
        if self.acts:
            return f"As {self.name} of Apache Kafka."
        return f"Kept for clients that ask for {self.name}; Kafka Lite does nothing with it."

    def check(self, value: str) -> None:
        """Raise `Refused` unless the value is one that this setting can have."""
        reason = self._objection(value)
        if reason is not None:
            message = f"Invalid value {value} for configuration {self.name}: {reason}"
            raise Refused(Code.INVALID_CONFIG, message)

    def _objection(self, value: str) -> str | None:
        if self.kind is Kind.BOOLEAN:
            is_known = value.strip().lower() in {"true", "false"}
            return None if is_known else "Expected value to be either true or false"
        if self.kind is Kind.LIST:
            return self._choice_objection([item.strip() for item in value.split(",") if item])
        if self.kind in _TEXTS:
            return self._choice_objection([value])
        try:
            number = float(value) if self.kind is Kind.DOUBLE else int(value)
        except ValueError:
            return f"Not a number of type {self.kind.name}"
        most = _MOST.get(self.kind, LONG_MAX)
        if not -most - 1 <= number <= most:
            return f"Not a number of type {self.kind.name}"
        if self.least is not None and number < self.least:
            return f"Value must be at least {self.least:g}"
        if self.most is not None and number > self.most:
            return f"Value must be no more than {self.most:g}"
        return self._choice_objection([str(number)])

    def _choice_objection(self, items: list[str]) -> str | None:
        if not self.choices or set(items) <= set(self.choices):
            return None
        return f"String must be one of: {', '.join(self.choices)}"


def _rows(name: str) -> list[list[str]]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


def _setting(
    row: list[str], synonyms: tuple[str, ...] = (), change: Change = Change.CLUSTER
) -> Setting:
    name, kind, default, limits, _, flags = row
    least, separator, most = limits.partition("..")
    return Setting(
        name,
        Kind[kind],
        None if default == "null" else default.replace("''", ""),
        least=float(least) if separator else None,
        most=float(most) if most else None,
        choices=tuple(limits.split("|")) if "|" in limits else (),
        synonyms=synonyms,
        change=change,
        acts="acts" in flags,
        is_secret="secret" in flags,
        is_hidden="hidden" in flags,
    )


def _topic_setting(row: list[str]) -> Setting:
    return _setting(row, synonyms=() if row[4] == "-" else tuple(row[4].split(" ")))


def _broker_setting(row: list[str]) -> Setting:
    return _setting(row, change=Change[row[4].replace("-", "_").upper()])


TOPIC_SETTINGS: Final[dict[str, Setting]] = {
    row[0]: _topic_setting(row) for row in _rows("settings_of_topics.tsv")
}
BROKER_SETTINGS: Final[dict[str, Setting]] = {
    row[0]: _broker_setting(row) for row in _rows("settings_of_brokers.tsv")
}


def topic_setting(name: str) -> Setting:
    """The setting of a topic by its name; `Refused` if there is none."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise Refused(Code.INVALID_CONFIG, f"Unknown topic config name: {name}")
    return setting


def broker_setting(name: str) -> Setting:
    """The setting of a broker by its name.

    One that nobody knows may be meant for a plug-in, so Apache Kafka keeps it, and shows it to
    nobody.
    """
    return BROKER_SETTINGS.get(name) or Setting(name, Kind.STRING, None, is_secret=True)
