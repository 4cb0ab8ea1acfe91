"""Parses the options of a query, which have the names of Spark's Kafka connector. Pure.

Rules:
- Names are not case-sensitive, as everywhere in Spark; values are case-sensitive if Kafka's are.
- `kafka.NAME` is the client's property NAME. Options of the connector that have no meaning here
  (its consumer pools and poll time-outs) are accepted and ignored.
- Any other unknown or invalid option is an error that names it.
- Queries that the connector refuses are refused: a table that begins at the latest offset or ends
  at the earliest, a stream with an end, client properties that would override the query.
"""

import difflib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition
from shoal.model.units import parse_duration_s

RECORDS: Final = "records"
BATCHES: Final = "batches"

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
_IGNORED: Final = frozenset(
    {
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "groupidprefix",
        "path",
    }
)
# These properties would have no effect, so setting one is a mistake.
_NOT_FOR_USERS: Final = (
    "auto.offset.reset",
    "enable.auto.commit",
    "interceptor.classes",
    "key.deserializer",
    "value.deserializer",
)
_KNOWN: Final = (
    *_STRATEGIES,
    "mode",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "failondataloss",
    "includeheaders",
    "pushfilters",
)

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: the same everywhere, by partition, or by time (ms)."""

    everywhere: int | None = None
    by_partition: Offsets = field(default_factory=dict)
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query."""

    properties: Mapping[str, str]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()
    mode: str = RECORDS
    start: Bound = field(default_factory=Bound)
    end: Bound = field(default_factory=Bound)
    latest_if_no_time: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    fail_on_data_loss: bool = True
    include_headers: bool = False
    push_filters: bool = False


def parse(options: Mapping[str, str], *, is_stream: bool | None = None) -> Query:
    """Parse the options of a query; `is_stream` is None if it is not known yet."""
    settings = {name.lower(): value for name, value in options.items()}
    refuse_unknown(settings, _KNOWN, ignored=_IGNORED)
    properties = parse_properties(settings, refused=_NOT_FOR_USERS)
    if is_stream and (ends := sorted(name for name in settings if name.startswith("ending"))):
        raise ConfigError(f"the option {ends[0]} is for tables only: a stream has no end")
    default = LATEST if is_stream else EARLIEST
    most, least = (
        _parse_count(settings, "maxoffsetspertrigger"),
        _parse_count(settings, "minoffsetspertrigger"),
    )
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    start, end = (
        _parse_bound(settings, "starting", default),
        _parse_bound(settings, "ending", LATEST),
    )
    if is_stream is False:
        _refuse_end(start, LATEST, "startingOffsets cannot be latest for a table")
        _refuse_end(end, EARLIEST, "endingOffsets cannot be earliest")
    return Query(
        properties=properties,
        **_parse_strategy(settings),
        mode=parse_choice(settings, "mode", (RECORDS, BATCHES), default=RECORDS),
        start=start,
        end=end,
        latest_if_no_time=parse_choice(
            settings, "startingoffsetsbytimestampstrategy", ("error", "latest"), default="error"
        )
        == "latest",
        min_partitions=_parse_count(settings, "minpartitions"),
        max_records_per_partition=_parse_count(settings, "maxrecordsperpartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_parse_delay_s(settings),
        fail_on_data_loss=parse_flag(settings, "failondataloss", default=True),
        include_headers=parse_flag(settings, "includeheaders", default=False),
        push_filters=parse_flag(settings, "pushfilters", default=False),
    )


def _refuse_end(bound: Bound, end: int, words: str) -> None:
    if not bound.is_time and end in {bound.everywhere, *bound.by_partition.values()}:
        raise ConfigError(words)


def parse_properties(settings: Mapping[str, str], *, refused: Iterable[str]) -> dict[str, str]:
    """Return the properties of the client, which the options `kafka.NAME` set."""
    properties = {
        name.removeprefix("kafka."): value
        for name, value in settings.items()
        if name.startswith("kafka.")
    }
    if "bootstrap.servers" not in properties:
        raise ConfigError(
            "the option kafka.bootstrap.servers is missing",
            remedy='.option("kafka.bootstrap.servers", "host:9092")',
        )
    for name in refused:
        if name in properties:
            raise ConfigError(f"the option kafka.{name} is not supported")
    return properties


def refuse_unknown(
    settings: Mapping[str, str], known: Sequence[str], *, ignored: Container[str] = ()
) -> None:
    """Refuse options that have no meaning here, and name the nearest that has one."""
    for name in settings:
        if name in known or name in ignored or name.startswith(("kafka.", "kafkaconsumer.")):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the known options are {', '.join(known)}"
        raise ConfigError(f"the option {name} is unknown", remedy=hint)


def _parse_strategy(settings: Mapping[str, str]) -> dict[str, Any]:
    given = [name for name in _STRATEGIES if settings.get(name)]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of {', '.join(_STRATEGIES)} must be given, not {len(given)}",
            remedy='.option("subscribe", "topic")',
        )
    [name] = given
    value = settings[name]
    if name == "subscribe":
        return {"topics": tuple(topic.strip() for topic in value.split(",") if topic.strip())}
    if name == "subscribepattern":
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(
                f"the option subscribePattern is not a regular expression: {error}"
            ) from error
        return {"pattern": value}
    try:
        assigned = {topic: [int(p) for p in some] for topic, some in json.loads(value).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the option assign cannot be read: {error}", remedy='write {"topic":[0,1]}'
        ) from error
    return {"partitions": tuple(TopicPartition(t, p) for t, some in assigned.items() for p in some)}


def _parse_bound(settings: Mapping[str, str], side: str, default: int) -> Bound:
    """Parse a bound; as in the connector, a time comes before times by partition and offsets."""
    if text := settings.get(f"{side}timestamp"):
        return Bound(_parse_int(text, f"{side}Timestamp"), is_time=True)
    if text := settings.get(f"{side}offsetsbytimestamp"):
        return Bound(None, _parse_offsets(text, f"{side}OffsetsByTimestamp"), is_time=True)
    text = settings.get(f"{side}offsets", "")
    if not text:
        return Bound(default)
    if text.lower() in _WORDS:
        word = _WORDS[text.lower()]
        if side == "ending" and word == EARLIEST:
            raise ConfigError("endingOffsets cannot be earliest")
        return Bound(word)
    return Bound(None, _parse_offsets(text, f"{side}Offsets"))


def _parse_offsets(text: str, name: str) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, offsets in json.loads(text).items()
            for partition, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the option {name} cannot be read: {error}", remedy='write {"topic":{"0":23,"1":-2}}'
        ) from error


def _parse_count(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name)
    if not text:
        return None
    number = _parse_int(text, name)
    if number < 1:
        raise ConfigError(f"the option {name} must be at least 1, not {number}")
    return number


def _parse_int(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"the option {name} must be a whole number, not {text!r:.40}") from error


def _parse_delay_s(settings: Mapping[str, str]) -> float:
    """Parse maxTriggerDelay; as everywhere in Spark, a bare number is milliseconds."""
    text = settings.get("maxtriggerdelay", "15m").strip()
    try:
        return parse_duration_s(f"{text}ms" if text.isdigit() else text)
    except UsageError as error:
        raise ConfigError(f"the option maxTriggerDelay: {error}") from error


def parse_flag(settings: Mapping[str, str], name: str, *, default: bool) -> bool:
    return parse_choice(settings, name, ("true", "false"), default=str(default).lower()) == "true"


def parse_choice(
    settings: Mapping[str, str], name: str, allowed: tuple[str, ...], *, default: str
) -> str:
    value = settings.get(name, default).lower()
    if value not in allowed:
        raise ConfigError(f"the option {name} must be {' or '.join(allowed)}, not {value!r:.40}")
    return value
