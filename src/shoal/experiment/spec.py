"""Parses the TOML file of an experiment into checked values (pure).

Rules:
- Sections: `[source] [target] [mirror] [topics] [producer] [consumer] [promises] [limits]
  [workers]`, and `[[fault]] [[zone]] [sweep]`, which other modules parse.
- The keys of `[producer]` and `[consumer]` are the serialised names of the fields of `ProducerSpec`
  and `ConsumerSpec`, except those that the plan sets. A unit may be in the value instead of the
  key.
- Each `[[variant]]` is the same experiment with some keys set to other values.
- Nothing is started, opened or looked up here: an invalid file is refused first.
- `--set section.key=value` has the effect of that line in the file. The section may be left out if
  only one section has the key.
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
_CLUSTER_DEFAULT: Final = -1  # the cluster's default.replication.factor
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MASTER: Final = re.compile(r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|(spark|k8s)://\S+")
# Fields that the plan sets.
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
# Where workers run.
SPARK: Final = "spark"
PROCESSES: Final = "processes"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to start, or an external one to use."""

    engine: str = "lite"
    brokers: int = 1
    version: str | None = None  # of Apache Kafka
    zookeepers: int = 1  # only if that version needs ZooKeeper
    racks: tuple[str, ...] = ()  # brokers take them round-robin
    profile: str | None = None  # of Kafka Lite
    controllers: int | None = None  # of Kafka Lite
    properties: Mapping[str, str] = field(default_factory=dict)  # of each broker
    bootstrap: str | None = None  # of an external one
    client: Mapping[str, str] = field(
        default_factory=dict
    )  # client properties of everything that connects to it


@dataclass(frozen=True, slots=True)
class MirrorSpec:
    """The mirror between source and target."""

    kind: str = "none"
    mode: str = "auto"  # one of `MODES`; see `mirror_mode`
    delivery: str = "idempotent"
    version: str | None = None  # of Apache Kafka, for mm1 and mm2
    handler: str | None = None  # module:function that shoal's mirror calls for each batch
    properties: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # added to shoal's command line
    prefix: str | None = None  # of topic names on the target; None: the default of the kind
    start: str | None = None  # the user's commands, for an external mirror
    stop: str | None = None
    internal_topics: tuple[str, ...] = ()  # patterns of topics that are not judged


@dataclass(frozen=True, slots=True)
class TopicsSpec:
    """The topics of the run, on each cluster."""

    name: str
    count: int = 1
    partitions: int = 4
    target_partitions: int = 4
    replication_factor: int = 1
    target_replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    existing: bool = False  # a canary topic that the run may write to
    first_partition: int = 0  # that consumers read; lower ones belong to other consumers
    # After this time the topic grows to `grow_to` partitions or, with 0, a second topic is created.
    # Extra producers and consumers then use the new partitions or topic.
    grow_after_s: float | None = None
    grow_to: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True)
class ProducersSpec:
    """Producers with the same settings; rate and messages are for all of them together."""

    count: int
    settings: Mapping[str, Any]  # fields of `ProducerSpec` in the file


@dataclass(frozen=True, slots=True)
class ConsumersSpec:
    """Independent groups of consumers with the same settings, except for their racks."""

    count: int = 1  # in each group
    groups: tuple[str, ...] = ("consumers",)
    racks: tuple[str, ...] = ()  # one for each group, or empty
    # Fields of `ConsumerSpec` and of `FetchSettings` in the file.
    settings: Mapping[str, Any] = field(default_factory=dict)
    fetching: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that override the settings of the producers; 0: no limit."""

    max_rate_per_s: float = 0.0
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkersSpec:
    """Where producers, consumers and scans run: tasks of Spark, or processes on this machine."""

    placement: str = SPARK
    master: str = ""  # "": a local Spark with a slot for each worker
    executors: int = 1  # that must be up before the run starts
    host: str = ""  # at which workers reach the driver; "": Spark's driver host
    port: int = 0  # 0: any

    @property
    def on_spark(self) -> bool:
        return self.placement == SPARK


def _default_promises() -> dict[str, Any]:
    return {"delivery": "exactly_once", "order": True, "fidelity": ["key", "headers", "payload"]}


@dataclass(frozen=True)
class ExperimentSpec:
    """One experiment; the sweep command parses `sweep`."""

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
    variant: str = ""  # name of the [[variant]], if the file has any
    worker_prefix: str = ""  # in the names of the workers of a grown topic

    @property
    def title(self) -> str:
        """The name of the experiment with the name of its variant."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    @property
    def clusters(self) -> dict[str, ClusterSpec]:
        """By role: `source`, and `target` if the experiment has one."""
        return {"source": self.source} | ({"target": self.target} if self.target else {})


def load(file: Path, sets: Iterable[str] = ()) -> ExperimentSpec:
    """Load the experiment in a file, with the changes of `--set`."""
    return _apply_sets(read_toml(file), sets, default_name=file.stem)


def load_variants(
    file: Path, sets: Iterable[str] = (), *, engine: str | None = None
) -> list[ExperimentSpec]:
    """Load the experiments in a file: one for each `[[variant]]`, or the only one."""
    whole = read_toml(file)
    overrides = [
        f"{role}.engine={engine}" for role in ("source", "target") if engine and role in whole
    ]
    overrides += sets
    variants = [_parse_variant(table) for table in whole.tables("variant")]
    alone = load(file, overrides)  # must be valid without its variants too
    if not variants:
        return [alone]
    names = [name for name, _ in variants]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"{file}: two variants have the same name", remedy="give each variant its own name"
        )
    specs = []
    for name, changes in variants:
        table = read_toml(file)
        for key, value in changes.items():
            table.set_value(qualify_key(key.split(".", 2)), value, site=f"{file}, variant {name}")
        # `--set` applies to every variant, and overrides it.
        spec = _apply_sets(table, overrides, default_name=file.stem)
        # Variants may share clusters, but not topics.
        topics = replace(spec.topics, name=f"{spec.topics.name}-{name}")
        specs.append(replace(spec, variant=name, topics=topics))
    return specs


def _apply_sets(table: Table, sets: Iterable[str], *, default_name: str) -> ExperimentSpec:
    for text in sets:
        _apply_set(table, text)
    return parse(table, default_name=default_name)


def _parse_variant(table: Table) -> tuple[str, dict[str, Any]]:
    name = _parse_name(table, "name", "")
    changes = table.mapping("set")
    table.refuse_unknown_keys()
    return name, changes


def parse(table: Table, *, default_name: str) -> ExperimentSpec:
    """Parse an experiment; raise for the first mistake in it."""
    name, description = _parse_name(table, "name", default_name), table.text("description", "")
    warm_up_s, has_target = table.seconds("warm_up", 0.0), "target" in table
    sections = {section: table.table(section) for section in _SECTIONS}
    faults, places = table.tables("fault"), table.tables("zone")
    table.tables("variant")  # known, so that `done` accepts it; `load_variants` parses it
    table.refuse_unknown_keys()  # first, since a misspelt section would look like a missing one
    source = _parse_cluster(sections["source"])
    target = _parse_cluster(sections["target"]) if has_target else None
    mirror = _parse_mirror(sections["mirror"], has_target=has_target)
    promises, limits = _parse_promises(sections["promises"], mirror)
    consumers = _parse_consumers(sections["consumer"])
    return ExperimentSpec(
        name=name,
        description=description,
        source=source,
        target=target,
        mirror=mirror,
        topics=_parse_topics(sections["topics"], name, source, target),
        producers=_parse_producers(sections["producer"]),
        consumers=consumers,
        promises=promises,
        thresholds=limits,
        caps=_parse_caps(sections["limits"]),
        workers=_parse_workers(sections["workers"]),
        warm_up_s=warm_up_s,
        faults=timeline.parse(faults),
        zones=zones.parse(places, _zones_by_rack(source, target, consumers)),
        sweep=sections["sweep"],
    )


def _zones_by_rack(
    source: ClusterSpec, target: ClusterSpec | None, consumers: ConsumersSpec
) -> dict[str, str]:
    """Brokers and groups of consumers whose zone is their rack."""
    racks = dict(zip(consumers.groups, consumers.racks, strict=False))
    for role, cluster in (("source", source), ("target", target)):
        if cluster is not None and cluster.racks:
            for number in range(cluster.brokers):
                racks[f"{role}/{number + 1}"] = cluster.racks[number % len(cluster.racks)]
    return racks


def producer_keys() -> tuple[str, ...]:
    return tuple(_configurable_fields(ProducerSpec))


def consumer_keys() -> tuple[str, ...]:
    return (*_configurable_fields(ConsumerSpec), *_configurable_fields(FetchSettings))


def _parse_name(table: Table, key: str, default: str) -> str:
    name = table.text(key, default)
    if not _NAME.fullmatch(name):
        raise table.error(
            key,
            f"is {name!r:.60}, which is not a valid name",
            remedy="use at most 100 letters, digits, dots, dashes and underscores",
        )
    return name


def _parse_cluster(table: Table) -> ClusterSpec:
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
        raise table.error("bootstrap", "is missing", remedy='e.g. bootstrap = "kafka1:9092"')
    belongs = {
        "lite": {"brokers", "racks", "profile", "controllers", "properties"},
        "apache": {"brokers", "racks", "version", "zookeepers", "properties"},
        "external": {"bootstrap"},
    }
    for key in set.union(*belongs.values()) - belongs[engine]:
        if key in table:
            raise table.error(key, f"does not apply to the engine {engine}", remedy="leave it out")
    if version and not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise table.error(
            "version", f"is {version!r:.40}, which is not a version", remedy='write it like "3.9.2"'
        )
    if version and tuple(map(int, version.split("."))) < OLDEST_KAFKA:
        oldest = ".".join(map(str, OLDEST_KAFKA))
        raise table.error("version", f"is {version}: too old", remedy=f"use {oldest} or newer")
    if spec.brokers > 100:
        raise table.error("brokers", f"is {spec.brokers}; the limit is 100")
    table.refuse_unknown_keys()
    return spec


def _parse_mirror(table: Table, *, has_target: bool) -> MirrorSpec:
    kind = table.text("kind", "shoal" if has_target else "none", choices=KINDS)
    if has_target and kind == "none":
        raise table.error(
            "kind",
            'is "none", but [target] is set',
            remedy="leave out [target], or choose a mirror",
        )
    if not has_target and kind != "none":
        raise table.error("kind", f"is {kind}, but [target] is missing", remedy="add [target]")
    spec = MirrorSpec(
        kind=kind,
        mode=table.text("mode", "auto", choices=MODES),
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
            raise table.error(key, f"does not apply to the mirror {kind}", remedy="leave it out")
    if spec.stop and not spec.start:
        raise table.error("stop", "needs mirror.start too")
    table.refuse_unknown_keys()
    return spec


def _parse_topics(
    table: Table, experiment: str, source: ClusterSpec, target: ClusterSpec | None
) -> TopicsSpec:
    partitions = table.count("partitions", 4, least=1)
    read_cluster = target or source
    copies = table.count(
        "replication_factor", _default_replication_factor(source), least=_CLUSTER_DEFAULT
    )
    spec = TopicsSpec(
        name=_parse_name(table, "name", experiment),
        count=table.count("count", 1, least=1),
        partitions=partitions,
        target_partitions=table.count("target_partitions", partitions, least=1),
        replication_factor=copies,
        target_replication_factor=table.count(
            "target_replication_factor",
            _default_replication_factor(read_cluster)
            if read_cluster.engine == "external"
            else min(copies, read_cluster.brokers),
            least=_CLUSTER_DEFAULT,
        ),
        configs=table.properties("configs"),
        **_parse_growth(table, partitions),
    )
    if spec.grow_after_s is not None and (spec.count > 1 or spec.target_partitions != partitions):
        raise table.error(
            "grow_after",
            "needs exactly one topic, with as many partitions on the target as on the source",
        )
    if max(partitions, spec.target_partitions) * spec.count > MAX_PARTITIONS:
        raise table.error("partitions", f"are more than {MAX_PARTITIONS} in total")
    for key, factor, cluster in (
        ("replication_factor", copies, source),
        ("target_replication_factor", spec.target_replication_factor, read_cluster),
    ):
        if cluster.engine != "external" and factor > cluster.brokers:
            raise table.error(
                key, f"is {factor}, but the cluster has only {cluster.brokers} brokers"
            )
        if factor == 0:
            raise table.error(key, "is 0", remedy="use -1 for the cluster's default")
    table.refuse_unknown_keys()
    return spec


def _parse_growth(table: Table, partitions: int) -> dict[str, Any]:
    """The fields of `TopicsSpec` for growth."""
    after_s = table.seconds("grow_after", 0.0) if "grow_after" in table else None
    table.seconds("grow_after", 0.0)  # known, so that a similar misspelt key is explained
    grow_to, is_new = table.count("grow_to", 0), table.flag("new_topic", default=False)
    if after_s is None and (grow_to or is_new):
        raise table.error("grow_after", "is missing", remedy='e.g. grow_after = "5s"')
    if after_s is not None and bool(grow_to) == is_new:
        raise table.error("grow_to", "or new_topic = true must be set, and not both")
    if grow_to and not partitions < grow_to <= MAX_PARTITIONS:
        raise table.error("grow_to", f"is {grow_to}, but must be above {partitions}")
    return {"grow_after_s": after_s, "grow_to": grow_to}


def _default_replication_factor(cluster: ClusterSpec) -> int:
    """Up to three replicas; for an external cluster its own default."""
    return _CLUSTER_DEFAULT if cluster.engine == "external" else min(3, cluster.brokers)


def _parse_producers(table: Table) -> ProducersSpec:
    count = table.count("count", 1, least=1)
    settings = _parse_settings(table, ProducerSpec)
    if count > MAX_WORKERS:
        raise table.error("count", f"is {count}; the limit is {MAX_WORKERS}")
    for key in ("rate_per_s", "messages", "duration_s"):
        if settings.get(key, 1) <= 0:
            raise table.error(key, "must be above 0")
    if settings.get("rate_per_s", 1) > HIGHEST_RATE_PER_S:
        raise table.error("rate_per_s", f"must not be above {HIGHEST_RATE_PER_S}")
    if "messages" not in settings and "duration_s" not in settings:
        raise table.error("messages", "is missing", remedy='set messages, or duration = "30s"')
    size_bytes = settings.get("size_bytes", ProducerSpec.size_bytes)
    in_headers = settings.get("use_headers", ProducerSpec.use_headers)
    least = smallest_message(f"producer-{count}", in_headers=in_headers)
    if size_bytes < least:
        raise table.error("size_bytes", f"is {size_bytes}, but must be {least} or more")
    settings.setdefault("rate_per_s", 1000.0)
    settings.setdefault("idempotent", settings.get("acks", -1) == -1)
    table.refuse_unknown_keys()
    try:
        ProducerSpec(run="", producer="", topics=(), **arguments_of(ProducerSpec, settings))
    except ConfigError as error:
        raise table.error("", f"is invalid: {error.message}", remedy=error.remedy) from error
    return ProducersSpec(count, settings)


def _parse_consumers(table: Table) -> ConsumersSpec:
    groups = table.texts("groups", ["consumers"])
    racks = table.texts("racks")
    count = table.count("count", 1, least=1)
    settings, fetching = _parse_settings(table, ConsumerSpec), _parse_settings(table, FetchSettings)
    if not groups or len(set(groups)) < len(groups) or not all(map(_NAME.fullmatch, groups)):
        raise table.error("groups", "must be a list of different group names")
    if racks and len(racks) != len(groups):
        raise table.error(
            "racks", f"are {len(racks)} for {len(groups)} groups; give one for each group"
        )
    isolation = fetching.get("isolation", FetchSettings.isolation)
    if isolation not in ISOLATIONS:
        legal = ", ".join(ISOLATIONS)
        raise table.error("isolation", f"is {isolation!r:.40}", remedy=f"legal are {legal}")
    if count * len(groups) > MAX_WORKERS:
        raise table.error("count", f"gives more than {MAX_WORKERS} consumers")
    table.refuse_unknown_keys()
    return ConsumersSpec(count, groups, racks, settings, fetching)


def _parse_promises(table: Table, mirror: MirrorSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    default = "exactly_once" if mirror.kind == "shoal" else "at_least_once"
    delivery = table.text("delivery", default, choices=PROMISED_DELIVERIES)
    promises: dict[str, Any] = {"delivery": delivery, "order": table.flag("order", True)}
    kept = table.texts("fidelity", ["key", "headers", "payload"])
    for name in kept:
        if name not in FIDELITIES:
            legal = ", ".join(FIDELITIES)
            raise table.error("fidelity", f"has {name!r:.40}", remedy=f"legal are {legal}")
    promises["fidelity"] = list(kept)
    limits = table.texts("thresholds")
    try:
        thresholds.parse(limits)
    except UsageError as error:
        raise table.error(
            "thresholds", f"are wrong: {error.message}", remedy=error.remedy
        ) from error
    table.refuse_unknown_keys()
    return promises, limits


def _parse_caps(table: Table) -> Caps:
    caps = Caps(
        table.quantity("max_rate_per_s", float) or 0.0, table.quantity("max_bytes", int) or 0
    )
    table.refuse_unknown_keys()
    return caps


def _parse_workers(table: Table) -> WorkersSpec:
    master = table.text("master", "")
    spec = WorkersSpec(
        placement=table.text("placement", SPARK, choices=(SPARK, PROCESSES)),
        master=master,
        executors=table.count("executors", 1, least=1),
        host=table.text("host", ""),
        port=table.count("port", 0),
    )
    if "master" in table and not _MASTER.fullmatch(master):
        raise table.error(
            "master",
            f"is {master!r:.60}, which is not a Spark master",
            remedy="use e.g. local[4], spark://host:7077 or yarn",
        )
    if master and not spec.on_spark:
        raise table.error(
            "master", f"does not apply to the placement {PROCESSES}", remedy="leave one of them out"
        )
    for key in ("executors", "host", "port"):
        if key in table and not master:
            raise table.error(key, "does not apply without a master", remedy='e.g. master = "yarn"')
    if spec.port > 65535:
        raise table.error("port", f"is {spec.port}; the highest port is 65535")
    table.refuse_unknown_keys()
    return spec


def _parse_settings(table: Table, cls: type) -> dict[str, Any]:
    """The fields of `cls` that are set in a table."""
    found = {}
    for name, kind in _configurable_fields(cls).items():
        value = _parse_acks(table) if name == "acks" else _parse_value(table, name, kind)
        if value is not None:
            found[name] = value
    return found


def _parse_value(table: Table, name: str, kind: type) -> Any:
    value = table.quantity(name, kind, aliases=_ALIASES.get(name, ()))
    if isinstance(value, int | float) and value < 0:
        raise table.error(name, f"is {value}, but must not be negative")
    return value


def _parse_acks(table: Table) -> int | None:
    if "acks" not in table:
        table.text("acks", "all")
        return None
    try:
        value: Any = table.text("acks")
    except ConfigError:
        value = table.count("acks", least=-1)
    legal = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if str(value) not in legal:
        raise table.error("acks", f"is {value!r:.40}", remedy='legal are 0, 1 and "all"')
    return legal[str(value)]


def _configurable_fields(cls: type) -> dict[str, type]:
    """The fields that a file may set, with their plain types."""
    chosen: dict[str, type] = {}
    for name in names_of(cls):
        hint = name.hint
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        if name.serialised_name not in _PLANNED[cls] and hint in (int, float, str, bool):
            chosen[name.serialised_name] = hint
    return chosen


def _apply_set(table: Table, text: str) -> None:
    """One `--set section.key=value`."""
    key, sign, value = text.partition("=")
    path = [part.strip() for part in key.strip().split(".", 2)]
    if not sign or not all(path):
        raise UsageError(
            f"--set {text!r:.80} is not key=value", remedy="write it like --set producer.acks=1"
        )
    table.set_value(
        qualify_key(path), _parse_toml_value(value.strip()), site=f"--set {key.strip()}"
    )


def qualify_key(path: list[str]) -> list[str]:
    """The path of a key; a key without a section gets the only section that has it."""
    if len(path) > 1 or path[0] in {"name", "description", "warm_up"}:
        return path
    sections = [name for name, keys in _SECTION_KEYS.items() if path[0] in keys]
    if len(sections) == 1:
        return [sections[0], path[0]]
    remedy = f"use one of {', '.join(f'{name}.{path[0]}' for name in sections)}"
    raise UsageError(
        f"{path[0]!r:.60} is not a key of exactly one section",
        remedy=remedy if sections else "give the section too, e.g. producer.acks",
    )


def _parse_toml_value(text: str) -> Any:
    """Parse as TOML, or take it as a string: quotes are a nuisance in a shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_short_forms(names: Iterable[str]) -> set[str]:
    units = ("_per_s", "_bytes", "_us", "_ms", "_s")
    shorter = {name.removesuffix(unit) for name in names for unit in units}
    return shorter | set(names) | {alias for name in names for alias in _ALIASES.get(name, ())}


_SECTION_KEYS: Final[dict[str, set[str]]] = {
    "producer": _with_short_forms(producer_keys()),
    "consumer": _with_short_forms(consumer_keys()) | {"groups"},
    "topics": {"partitions", "target_partitions", "replication_factor"},
    "mirror": {"kind", "mode", "delivery"},
    "promises": {"order", "fidelity", "thresholds"},
    "workers": {"placement", "master", "executors"},
}
