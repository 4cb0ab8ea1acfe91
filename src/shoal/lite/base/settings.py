"""Every setting of topics and brokers, from two tables: its name, type, default and range.

The tables are those of Apache Kafka 4.3.1, all of them, in `settings_of_topics.tsv` and
`settings_of_brokers.tsv`: clients and mirrors copy settings between clusters, and must find them
again.

- `default`: `null` is no default, `''` is an empty text. `docs/reference/differences-from-kafka.md`
  lists the defaults that differ from Apache Kafka's.
- `range`: `least..most`, or choices separated by `|`.
- `broker` (topics only): the broker's names for the setting, the strongest first.
- `change` (brokers only): `start` cannot change while the broker runs, `cluster` can, for one
  broker or for all, `per-broker` only for one.
- `flags`: `acts` has an effect in Kafka Lite, all others are only stored and shown; the value of a
  `secret` is not shown; `hidden` is not listed.
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from shoal.lite.base.codes import ApiError, Code

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
SHORT_MAX: Final = (1 << 15) - 1


class SettingType(IntEnum):
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


class ConfigSource(IntEnum):
    """Where a value comes from, by the numbers that DescribeConfigs sends."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class UpdateMode(IntEnum):
    """When a broker's setting can be changed."""

    START = 0
    CLUSTER = 1
    PER_BROKER = 2


_TYPE_MAX = {SettingType.INT: INT_MAX, SettingType.SHORT: SHORT_MAX, SettingType.LONG: LONG_MAX}
_TEXT_TYPES = {SettingType.STRING, SettingType.CLASS, SettingType.PASSWORD}


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """One setting. `synonyms` are the broker's names for a topic's setting."""

    name: str
    kind: SettingType
    default: str | None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    change: UpdateMode = UpdateMode.CLUSTER
    acts: bool = False
    is_secret: bool = False
    is_hidden: bool = False

    @property
    def synonym(self) -> str | None:
        """The broker's name for a topic's setting."""
        return self.synonyms[0] if self.synonyms else None

    @property
    def documentation(self) -> str:
        """What Kafka Lite does with this setting."""
        if self.acts:
            return f"As {self.name} of Apache Kafka."
        return f"Kept for clients that ask for {self.name}; Kafka Lite does nothing with it."

    def check(self, value: str) -> None:
        """Raise `ApiError` unless the value is valid for this setting."""
        reason = self._find_problem(value)
        if reason is not None:
            message = f"Invalid value {value} for configuration {self.name}: {reason}"
            raise ApiError(Code.INVALID_CONFIG, message)

    def _find_problem(self, value: str) -> str | None:
        if self.kind is SettingType.BOOLEAN:
            is_known = value.strip().lower() in {"true", "false"}
            return None if is_known else "Expected value to be either true or false"
        if self.kind is SettingType.LIST:
            return self._find_choice_problem([item.strip() for item in value.split(",") if item])
        if self.kind in _TEXT_TYPES:
            return self._find_choice_problem([value])
        try:
            number = float(value) if self.kind is SettingType.DOUBLE else int(value)
        except ValueError:
            return f"Not a number of type {self.kind.name}"
        most = _TYPE_MAX.get(self.kind, LONG_MAX)
        if not -most - 1 <= number <= most:
            return f"Not a number of type {self.kind.name}"
        if self.least is not None and number < self.least:
            return f"Value must be at least {self.least:g}"
        if self.most is not None and number > self.most:
            return f"Value must be no more than {self.most:g}"
        return self._find_choice_problem([str(number)])

    def _find_choice_problem(self, items: list[str]) -> str | None:
        if not self.choices or set(items) <= set(self.choices):
            return None
        return f"String must be one of: {', '.join(self.choices)}"


def _rows(name: str) -> list[list[str]]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


def _setting(
    row: list[str], synonyms: tuple[str, ...] = (), change: UpdateMode = UpdateMode.CLUSTER
) -> ConfigSetting:
    name, kind, default, limits, _, flags = row
    least, separator, most = limits.partition("..")
    return ConfigSetting(
        name,
        SettingType[kind],
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


def _topic_setting(row: list[str]) -> ConfigSetting:
    return _setting(row, synonyms=() if row[4] == "-" else tuple(row[4].split(" ")))


def _broker_setting(row: list[str]) -> ConfigSetting:
    return _setting(row, change=UpdateMode[row[4].replace("-", "_").upper()])


TOPIC_SETTINGS: Final[dict[str, ConfigSetting]] = {
    row[0]: _topic_setting(row) for row in _rows("settings_of_topics.tsv")
}
BROKER_SETTINGS: Final[dict[str, ConfigSetting]] = {
    row[0]: _broker_setting(row) for row in _rows("settings_of_brokers.tsv")
}


def topic_setting(name: str) -> ConfigSetting:
    """The setting of a topic by its name; `ApiError` if it is unknown."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise ApiError(Code.INVALID_CONFIG, f"Unknown topic config name: {name}")
    return setting


def broker_setting(name: str) -> ConfigSetting:
    """The setting of a broker by its name.

    An unknown one may be meant for a plug-in, so Apache Kafka stores it, and treats it as secret.
    """
    return BROKER_SETTINGS.get(name) or ConfigSetting(
        name, SettingType.STRING, None, is_secret=True
    )
