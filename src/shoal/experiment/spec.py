"""An experiment as its file says it: TOML in, checked values out (pure).

Rules:
- Sections: `[source] [target] [mirror] [topics] [producer] [consumer] [promises] [limits]
  [workers]`, and `[[fault]] [[zone]] [sweep]`, which those who act on them take apart.
- The keys of `[producer]` and `[consumer]` are the declared names of the fields of `ProducerSpec`
  and `ConsumerSpec`, but for those that follow from the plan; units may stand in the value instead
  of the key.
- Each `[[variant]]` is the same experiment with some keys set otherwise.
- Nothing here starts, opens or looks up anything: a wrong file is refused before all that.
- `--set section.key=value` is as if it stood in the file; a key that only one section has needs
  no section.
"""

import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from shoal.audit.result import thresholds
from shoal.faults import timeline, zones
from shoal.faults.timeline import Timeline
from shoal.faults.zones import Zones
from shoal.model.errors import ConfigError, UsageError
from shoal.model.promises import FIDELITIES, PROMISED_DELIVERIES
from shoal.model.serialised import arguments_of, names_of
from shoal.model.tables import Table, read_toml
from shoal.systems.apache.jars import OLDEST_KAFKA
from shoal.systems.clusters import ENGINES
from shoal.systems.mirrors import DELIVERIES, KINDS, MODES
from shoal.workload.envelope import smallest_message
from shoal.workload.send.schedule import HIGHEST_RATE_PER_S
from shoal.workload.specs import ConsumerSpec, FetchSettings, ProducerSpec

MAX_PARTITIONS: Final = 10_000
MAX_WORKERS: Final = 200
_LEAST_COPIES: Final = -1  # as the cluster has it by default
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MASTER: Final = re.compile(r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|(spark|k8s)://\S+")
# What the plan fills in by itself.
_PLANNED: Final = {
    ProducerSpec: {"run", "producer", "topics", "start_us", "incarnation", "first_numbers"},
    ConsumerSpec: {"run", "group", "consumer", "topics", "partitions", "cluster", "fetching"},
    FetchSettings: {"rack"},
}
_ALIASES: Final = {"max_in_flight": ("in_flight",), "use_headers": ("headers",)}
_SECTIONS: Final = (
    "source",
    "target",
    "mirror",
    "topics",
    "producer",
    "consumer",
    "promises",
    "limits",
    "workers",
    "sweep",
)
ISOLATIONS: Final = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to start, or somebody else's to use."""

    engine: str = "lite"
    brokers: int = 1
    version: str | None = None  # of Apache Kafka
    zookeepers: int = 1  # only where that version needs them
    racks: tuple[str, ...] = ()  # dealt out to the brokers in turn
    profile: str | None = None  # of Kafka Lite
    controllers: int | None = None  # of Kafka Lite
    properties: Mapping[str, str] = field(default_factory=dict)  # of each broker
    bootstrap: str | None = None  # of an external one
    client: Mapping[str, str] = field(default_factory=dict)  # of whoever talks to it


@dataclass(frozen=True, slots=True)
class MirrorSpec:
    """What copies from source to target."""

    kind: str = "none"
    mode: str = "shallow"
    delivery: str = "idempotent"
    version: str | None = None  # of Apache Kafka, for mm1 and mm2
    handler: str | None = None  # what shoal's mirror does to each batch
    properties: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # added to shoal's command line
    prefix: str | None = None  # put before topic names on the target; None: the kind's own
    start: str | None = None  # commands of the user's, for an external one
    stop: str | None = None
    internal_topics: tuple[str, ...] = ()  # patterns of topics that are the mirror's own business


@dataclass(frozen=True, slots=True)
class TopicsSpec:
    """Topics that are made for the run, on each cluster."""

    name: str
    count: int = 1
    partitions: int = 4
    target_partitions: int = 4
    replication_factor: int = 1
    target_replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    existing: bool = False  # it is there already, and may be written to
    first_partition: int = 0  # that consumers read; those below are others'
    # After so long the topic gets `grow_to` partitions or, with 0, a second one is made; some
    # producers and consumers are there for that only.
    grow_after_s: float | None = None
    grow_to: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True)
class ProducersSpec:
    """Producers, all alike. Rates and messages are for all of them together."""

    count: int
    settings: Mapping[str, Any]  # fields of `ProducerSpec` that the file gives


@dataclass(frozen=True, slots=True)
class ConsumersSpec:
    """Independent groups of consumers, all alike but for the rack that they read from."""

    count: int = 1  # in each group
    groups: tuple[str, ...] = ("consumers",)
    racks: tuple[str, ...] = ()  # one for each group, or none at all
    # Fields of `ConsumerSpec` and of `FetchSettings` that the file gives.
    settings: Mapping[str, Any] = field(default_factory=dict)
    fetching: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caps:
    """What a run must never exceed, whatever its file asks for; 0 is no limit."""

    max_rate_per_s: float = 0.0
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkersSpec:
    """Where producers, consumers and scans run: processes of this machine, or tasks of a Spark."""

    on_spark: bool = False
    master: str = ""  # "": a Spark of this machine, with a slot for each of them
    executors: int = 1  # to wait for
    host: str = ""  # where they reach the driver; "": as Spark says
    port: int = 0  # 0: any


def _default_promises() -> dict[str, Any]:
    return {"delivery": "exactly_once", "order": True, "fidelity": ["key", "headers", "payload"]}


@dataclass(frozen=True)
class ExperimentSpec:
    """One experiment. `sweep` is for those who act on it."""

    name: str
    topics: TopicsSpec
    producers: ProducersSpec
    consumers: ConsumersSpec = field(default_factory=ConsumersSpec)
    source: ClusterSpec = field(default_factory=ClusterSpec)
    target: ClusterSpec | None = None
    mirror: MirrorSpec = field(default_factory=MirrorSpec)
    promises: Mapping[str, Any] = field(default_factory=_default_promises)
    thresholds: tuple[str, ...] = ()
    caps: Caps = field(default_factory=Caps)
    workers: WorkersSpec = field(default_factory=WorkersSpec)
    warm_up_s: float = 0.0
    faults: Timeline = field(default_factory=Timeline)
    zones: Zones = field(default_factory=Zones)
    sweep: Table | None = None
    description: str = ""
    variant: str = ""  # of a file that has several
    crew: str = ""  # part of the names of workers that come later

    @property
    def title(self) -> str:
        """Its name, and its variant's."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def clusters(self) -> dict[str, ClusterSpec]:
        """By role: `source`, and `target` if there is one."""
        return {"source": self.source} | ({"target": self.target} if self.target else {})


def load(file: Path, sets: Iterable[str] = ()) -> ExperimentSpec:
    """The experiment in a file, after the changes of `--set`."""
    return _changed(read_toml(file), sets, default_name=file.stem)


def load_variants(
    file: Path, sets: Iterable[str] = (), *, engine: str | None = None
) -> list[ExperimentSpec]:
    """The experiments in a file: one for each `[[variant]]`, or the one that it has."""
    whole = read_toml(file)
    asked = [f"{role}.engine={engine}" for role in ("source", "target") if engine and role in whole]
    asked += sets
    variants = [_variant(table) for table in whole.tables("variant")]
    alone = load(file, asked)  # must make sense without its variants too
    if not variants:
        return [alone]
    names = [name for name, _ in variants]
    if len(set(names)) < len(names):
        raise ConfigError(f"{file}: two variants have one name", remedy="name each its own")
    specs = []
    for name, changes in variants:
        table = read_toml(file)
        for key, value in changes.items():
            table.put(qualified(key.split(".", 2)), value, site=f"{file}, variant {name}")
        # What the user says counts for every variant.
        spec = _changed(table, asked, default_name=file.stem)
        # Variants may share their clusters, but no topics.
        topics = replace(spec.topics, name=f"{spec.topics.name}-{name}")
        specs.append(replace(spec, variant=name, topics=topics))
    return specs


def _changed(table: Table, sets: Iterable[str], *, default_name: str) -> ExperimentSpec:
    for text in sets:
        _put(table, text)
    return parse(table, default_name=default_name)


def _variant(table: Table) -> tuple[str, dict[str, Any]]:
    name = _named(table, "name", "")
    changes = table.mapping("set")
    table.done()
    return name, changes


def parse(table: Table, *, default_name: str) -> ExperimentSpec:
    """The experiment in a table, or the first mistake in it."""
    name, description = _named(table, "name", default_name), table.text("description", "")
    warm_up_s, has_target = table.seconds("warm_up", 0.0), "target" in table
    sections = {section: table.table(section) for section in _SECTIONS}
    faults, places = table.tables("fault"), table.tables("zone")
    table.tables("variant")  # is for whoever loads the file
    table.done()  # first of all: a misspelt section would look like a missing one
    source = _cluster(sections["source"])
    target = _cluster(sections["target"]) if has_target else None
    mirror = _mirror(sections["mirror"], has_target=has_target)
    promises, limits = _promises(sections["promises"], mirror)
    consumers = _consumers(sections["consumer"])
    return ExperimentSpec(
        name=name,
        description=description,
        source=source,
        target=target,
        mirror=mirror,
        topics=_topics(sections["topics"], name, source, target),
        producers=_producers(sections["producer"]),
        consumers=consumers,
        promises=promises,
        thresholds=limits,
        caps=_caps(sections["limits"]),
        workers=_workers(sections["workers"]),
        warm_up_s=warm_up_s,
        faults=timeline.parse(faults),
        zones=zones.parse(places, _by_rack(source, target, consumers)),
        sweep=sections["sweep"],
    )


def _by_rack(
    source: ClusterSpec, target: ClusterSpec | None, consumers: ConsumersSpec
) -> dict[str, str]:
    """Whose zone follows from the rack: brokers, and groups of consumers."""
    racks = dict(zip(consumers.groups, consumers.racks, strict=False))
    for role, cluster in (("source", source), ("target", target)):
        if cluster is not None and cluster.racks:
            for number in range(cluster.brokers):
                racks[f"{role}/{number + 1}"] = cluster.racks[number % len(cluster.racks)]
    return racks


def producer_keys() -> tuple[str, ...]:
    return tuple(_fields(ProducerSpec))


def consumer_keys() -> tuple[str, ...]:
    return (*_fields(ConsumerSpec), *_fields(FetchSettings))


def _named(table: Table, key: str, default: str) -> str:
    name = table.text(key, default)
    if not _NAME.fullmatch(name):
        raise table.wrong(
            key,
            f"is {name!r:.60}, which cannot be a name",
            remedy="use letters, digits, dots, dashes and underscores, at most 100",
        )
    return name


def _cluster(table: Table) -> ClusterSpec:
    engine = table.text("engine", "lite", choices=(*ENGINES, "external"))
    bootstrap = table.text("bootstrap", "")
    version, profile = table.text("version", ""), table.text("profile", "")
    controllers, racks = table.count("controllers", 0), table.texts("racks")
    spec = ClusterSpec(
        engine=engine,
        brokers=table.count("brokers", max(1, len(racks)), least=1),
        version=version or None,
        zookeepers=table.count("zookeepers", 1, least=1),
        racks=racks,
        profile=profile or None,
        controllers=controllers or None,
        properties=table.properties("properties"),
        bootstrap=bootstrap or None,
        client=table.properties("client"),
    )
    if engine == "external" and not bootstrap and "bootstrap.servers" not in spec.client:
        raise table.wrong("bootstrap", "is missing", remedy='e.g. bootstrap = "kafka1:9092"')
    belongs = {
        "lite": {"brokers", "racks", "profile", "controllers", "properties"},
        "apache": {"brokers", "racks", "version", "zookeepers", "properties"},
        "external": {"bootstrap"},
    }
    for key in set.union(*belongs.values()) - belongs[engine]:
        if key in table:
            raise table.wrong(key, f"means nothing to the engine {engine}", remedy="leave it out")
    if version and not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise table.wrong("version", f"is {version!r:.40}", remedy='write it like "3.9.2"')
    if version and tuple(map(int, version.split("."))) < OLDEST_KAFKA:
        oldest = ".".join(map(str, OLDEST_KAFKA))
        raise table.wrong("version", f"is {version}: too old", remedy=f"{oldest} is the oldest")
    if spec.brokers > 100:
        raise table.wrong("brokers", f"is {spec.brokers}: too many for one machine")
    table.done()
    return spec


def _mirror(table: Table, *, has_target: bool) -> MirrorSpec:
    kind = table.text("kind", "shoal" if has_target else "none", choices=KINDS)
    if has_target and kind == "none":
        raise table.wrong("kind", "is none, and there is a target", remedy="leave out [target]")
    if not has_target and kind != "none":
        raise table.wrong(
            "kind", f"is {kind}, and there is no [target] to copy to", remedy="add [target]"
        )
    spec = MirrorSpec(
        kind=kind,
        mode=table.text("mode", "shallow", choices=MODES),
        delivery=table.text("delivery", "idempotent", choices=DELIVERIES),
        version=table.text("version", "") or None,
        handler=table.text("handler", "") or None,
        properties=table.properties("properties"),
        arguments=table.texts("arguments"),
        prefix=table.text("prefix", "") if "prefix" in table else None,
        start=table.text("start", "") or None,
        stop=table.text("stop", "") or None,
        internal_topics=table.texts("internal_topics"),
    )
    belongs = {
        "none": set[str](),
        "shoal": {"mode", "delivery", "handler", "arguments", "prefix"},
        "mm1": {"version", "properties"},
        "mm2": {"version", "properties", "prefix"},
        "external": {"start", "stop", "prefix", "internal_topics"},
    }
    for key in set.union(*belongs.values()) - belongs[kind]:
        if key in table:
            raise table.wrong(key, f"means nothing to the mirror {kind}", remedy="leave it out")
    if spec.stop and not spec.start:
        raise table.wrong("stop", "needs a start too")
    table.done()
    return spec


def _topics(
    table: Table, experiment: str, source: ClusterSpec, target: ClusterSpec | None
) -> TopicsSpec:
    partitions = table.count("partitions", 4, least=1)
    there = target or source
    copies = table.count("replication_factor", _copies(source), least=_LEAST_COPIES)
    spec = TopicsSpec(
        name=_named(table, "name", experiment),
        count=table.count("count", 1, least=1),
        partitions=partitions,
        target_partitions=table.count("target_partitions", partitions, least=1),
        replication_factor=copies,
        target_replication_factor=table.count(
            "target_replication_factor",
            _copies(there) if there.engine == "external" else min(copies, there.brokers),
            least=_LEAST_COPIES,
        ),
        configs=table.properties("configs"),
        **_growth(table, partitions),
    )
    if spec.grow_after_s is not None and (spec.count > 1 or spec.target_partitions != partitions):
        raise table.wrong(
            "grow_after", "needs one topic, with as many partitions at the target as at the source"
        )
    if max(partitions, spec.target_partitions) * spec.count > MAX_PARTITIONS:
        raise table.wrong("partitions", f"come to more than {MAX_PARTITIONS} in all")
    for key, factor, cluster in (
        ("replication_factor", copies, source),
        ("target_replication_factor", spec.target_replication_factor, there),
    ):
        if cluster.engine != "external" and factor > cluster.brokers:
            raise table.wrong(key, f"is {factor}, and there are only {cluster.brokers} brokers")
        if factor == 0:
            raise table.wrong(key, "is 0", remedy="-1 stands for the cluster's default")
    table.done()
    return spec


def _growth(table: Table, partitions: int) -> dict[str, Any]:
    """When a topic grows, and to what."""
    after_s = table.seconds("grow_after", 0.0) if "grow_after" in table else None
    table.seconds("grow_after", 0.0)  # known, so that a misspelt one is explained
    grow_to, is_new = table.count("grow_to", 0), table.flag("new_topic", default=False)
    if after_s is None and (grow_to or is_new):
        raise table.wrong("grow_after", "is missing", remedy='e.g. grow_after = "5s"')
    if after_s is not None and bool(grow_to) == is_new:
        raise table.wrong("grow_to", "or new_topic = true must say what grows")
    if grow_to and not partitions < grow_to <= MAX_PARTITIONS:
        raise table.wrong("grow_to", f"is {grow_to}, and must be above {partitions}")
    return {"grow_after_s": after_s, "grow_to": grow_to}


def _copies(cluster: ClusterSpec) -> int:
    """As many as there can be, up to three; somebody else's cluster has a default of its own."""
    return _LEAST_COPIES if cluster.engine == "external" else min(3, cluster.brokers)


def _producers(table: Table) -> ProducersSpec:
    count = table.count("count", 1, least=1)
    settings = _settings(table, ProducerSpec)
    if count > MAX_WORKERS:
        raise table.wrong("count", f"is {count}, and the limit is {MAX_WORKERS}")
    for key in ("rate_per_s", "messages", "duration_s"):
        if settings.get(key, 1) <= 0:
            raise table.wrong(key, "must be above 0")
    if settings.get("rate_per_s", 1) > HIGHEST_RATE_PER_S:
        raise table.wrong("rate_per_s", f"must not be above {HIGHEST_RATE_PER_S}")
    if "messages" not in settings and "duration_s" not in settings:
        raise table.wrong(
            "messages", "is missing", remedy='say how many, or how long: duration = "30s"'
        )
    size_bytes = settings.get("size_bytes", ProducerSpec.size_bytes)
    in_headers = settings.get("use_headers", ProducerSpec.use_headers)
    least = smallest_message(f"producer-{count}", in_headers=in_headers)
    if size_bytes < least:
        raise table.wrong("size_bytes", f"is {size_bytes}, and must be {least} or more")
    settings.setdefault("rate_per_s", 1000.0)
    settings.setdefault("idempotent", settings.get("acks", -1) == -1)
    table.done()
    try:
        ProducerSpec(run="", producer="", topics=(), **arguments_of(ProducerSpec, settings))
    except ConfigError as error:
        raise table.wrong("", f"cannot be: {error}", remedy=error.remedy) from error
    return ProducersSpec(count, settings)


def _consumers(table: Table) -> ConsumersSpec:
    groups = table.texts("groups", ["consumers"])
    racks = table.texts("racks")
    count = table.count("count", 1, least=1)
    settings, fetching = _settings(table, ConsumerSpec), _settings(table, FetchSettings)
    if not groups or len(set(groups)) < len(groups) or not all(map(_NAME.fullmatch, groups)):
        raise table.wrong("groups", "must be different names of groups")
    if racks and len(racks) != len(groups):
        raise table.wrong("racks", f"are {len(racks)} for {len(groups)} groups: one for each")
    isolation = fetching.get("isolation", FetchSettings.isolation)
    if isolation not in ISOLATIONS:
        legal = ", ".join(ISOLATIONS)
        raise table.wrong("isolation", f"is {isolation!r:.40}", remedy=f"legal are {legal}")
    if count * len(groups) > MAX_WORKERS:
        raise table.wrong("count", f"makes more than {MAX_WORKERS} consumers")
    table.done()
    return ConsumersSpec(count, groups, racks, settings, fetching)


def _promises(table: Table, mirror: MirrorSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    default = "exactly_once" if mirror.kind == "shoal" else "at_least_once"
    delivery = table.text("delivery", default, choices=PROMISED_DELIVERIES)
    promises: dict[str, Any] = {"delivery": delivery, "order": table.flag("order", True)}
    kept = table.texts("fidelity", ["key", "headers", "payload"])
    for name in kept:
        if name not in FIDELITIES:
            legal = ", ".join(FIDELITIES)
            raise table.wrong("fidelity", f"has {name!r:.40}", remedy=f"legal are {legal}")
    promises["fidelity"] = list(kept)
    limits = table.texts("thresholds")
    try:
        thresholds.parse(limits)
    except UsageError as error:
        raise table.wrong("thresholds", f"are wrong: {error}", remedy=error.remedy) from error
    table.done()
    return promises, limits


def _caps(table: Table) -> Caps:
    caps = Caps(
        table.quantity("max_rate_per_s", float) or 0.0, table.quantity("max_bytes", int) or 0
    )
    table.done()
    return caps


def _workers(table: Table) -> WorkersSpec:
    master = table.text("master", "")
    spec = WorkersSpec(
        on_spark=bool(master),
        master=master,
        executors=table.count("executors", 1, least=1),
        host=table.text("host", ""),
        port=table.count("port", 0),
    )
    if "master" in table and not _MASTER.fullmatch(master):
        raise table.wrong(
            "master",
            f"is {master!r:.60}, which Spark does not know",
            remedy="e.g. local[4], spark://host:7077 or yarn",
        )
    for key in ("executors", "host", "port"):
        if key in table and not master:
            raise table.wrong(key, "means nothing without a master", remedy='e.g. master = "yarn"')
    if spec.port > 65535:
        raise table.wrong("port", f"is {spec.port}, and the highest is 65535")
    table.done()
    return spec


def _settings(table: Table, cls: type) -> dict[str, Any]:
    """The fields of a workload's spec that a table gives."""
    found = {}
    for name, kind in _fields(cls).items():
        value = _acks(table) if name == "acks" else _value(table, name, kind)
        if value is not None:
            found[name] = value
    return found


def _value(table: Table, name: str, kind: type) -> Any:
    value = table.quantity(name, kind, aliases=_ALIASES.get(name, ()))
    if isinstance(value, int | float) and value < 0:
        raise table.wrong(name, f"is {value}, and must not be negative")
    return value


def _acks(table: Table) -> int | None:
    if "acks" not in table:
        table.text("acks", "all")
        return None
    try:
        value: Any = table.text("acks")
    except ConfigError:
        value = table.count("acks", least=-1)
    legal = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if str(value) not in legal:
        raise table.wrong("acks", f"is {value!r:.40}", remedy='legal are 0, 1 and "all"')
    return legal[str(value)]


def _fields(cls: type) -> dict[str, type]:
    """The fields that a file may give, with their plain types."""
    chosen: dict[str, type] = {}
    for name in names_of(cls):
        hint = name.hint
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        if name.written not in _PLANNED[cls] and hint in (int, float, str, bool):
            chosen[name.written] = hint
    return chosen


def _put(table: Table, text: str) -> None:
    """One `--set section.key=value`."""
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.strip().split(".", 2)]
    if not sign or not all(path):
        raise UsageError(
            f"--set {text!r:.80} says nothing", remedy="write it like --set producer.acks=1"
        )
    table.put(qualified(path), _toml_value(value.strip()), site=f"--set {key.strip()}")


def qualified(path: list[str]) -> list[str]:
    """The path of a key, with its section if it stands alone and only one section has it."""
    if len(path) > 1 or path[0] in {"name", "description", "warm_up"}:
        return path
    sections = [name for name, keys in _SECTION_KEYS.items() if path[0] in keys]
    if len(sections) == 1:
        return [sections[0], path[0]]
    remedy = f"say which: {', '.join(f'{name}.{path[0]}' for name in sections)}"
    raise UsageError(
        f"{path[0]!r:.60} is not the key of one section",
        remedy=remedy if sections else "name the section too, e.g. producer.acks",
    )


def _toml_value(text: str) -> Any:
    """As TOML reads it, and as a text if it does not: quotes are a nuisance in a shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _short(names: Iterable[str]) -> set[str]:
    units = ("_per_s", "_bytes", "_us", "_ms", "_s")
    shorter = {name.removesuffix(unit) for name in names for unit in units}
    return shorter | set(names) | {alias for name in names for alias in _ALIASES.get(name, ())}


_SECTION_KEYS: Final[dict[str, set[str]]] = {
    "producer": _short(producer_keys()),
    "consumer": _short(consumer_keys()) | {"groups"},
    "topics": {"partitions", "target_partitions", "replication_factor"},
    "mirror": {"kind", "mode", "delivery"},
    "promises": {"order", "fidelity", "thresholds"},
    "workers": {"master", "executors"},
}
