"""A standalone producer or consumer: one process, one folder of ledgers, no driver.

Rules:
- A producer and a consumer that share nothing write two folders of one run; an audit joins them.
  `run.json` names each cluster by its id, so that the audit sees whether a mirror was between them.
- The folder is new, or an earlier process of the same role and run wrote it. In that case this
  process continues it under a newer lease; a producer keeps its incarnation, and starts above all
  numbers that may have been used. A folder of an older ledger format is not continued.
- The first signal is a graceful stop: a producer sends nothing new, waits for its answers and
  drains; a consumer seals its rows. The second signal stops at once; sealed rows stay.
- A consumer without a run reads the newest one in its topics; if they are empty, that of the first
  message that arrives. It never continues a folder, because it cannot know which run is meant.
- What it does is in the event stream of its folder too, as that of a run: `shoal serve` shows it.
- A standalone producer does not learn that its markers arrived: it sends them for the whole
  `drain_timeout_s`.
"""

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.errors import KafkaError
from shoal.client.results import EARLIEST, LATEST
from shoal.experiment.run import describe_invocation, sum_latencies
from shoal.model.errors import ShoalError, UsageError
from shoal.model.ledger import FORMAT
from shoal.model.run_folder import RUN_FILE, read_plan
from shoal.runtime.processes import machine_clock
from shoal.runtime.tasks import run_awaited
from shoal.telemetry.run_events import Outcome, RunEvents
from shoal.wire.error_codes import Code
from shoal.workload.control import LocalControl
from shoal.workload.envelope import topic_code, topic_hash
from shoal.workload.receive.compacted import find_compacted_topics
from shoal.workload.receive.consumer import ConsumerSummary, consume
from shoal.workload.receive.newest_run import NewestRun, find_newest_run
from shoal.workload.record.ledger import (
    CommitLog,
    close_run,
    create_run,
    earlier_incarnation,
    first_free_numbers,
    update_run,
)
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.producer import ProducerSummary, make_writer, produce
from shoal.workload.specs import ConsumerSpec, ProducedTopic, ProducerSpec, StartingPoint

# How long a topic that was created may take to be in the metadata.
_TOPIC_APPEARS_S: Final = 10.0

Json = dict[str, Any]
OnProgress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a standalone consumer reads and when it stops, besides its spec."""

    topics: tuple[str, ...]  # their names on the cluster that is read
    prefix: str = ""  # that a mirror added to the names
    from_start: bool = True
    duration_s: float | None = None
    idle_s: float | None = None  # stop when nothing has arrived for this long
    messages: int | None = None
    new_partitions: int | None = None  # of topics that do not exist; None: they must exist


async def produce_standalone(
    spec: ProducerSpec,
    properties: Mapping[str, str],
    *,
    lanes: int | None,
    new_partitions: int | None = None,
    folder: Path,
    on_progress: OnProgress,
) -> ProducerSummary:
    """Send what the spec says; of its topics only the names are used.

    `lanes` is the number of partitions of the target topics; None: as many as the source has.
    Topics that do not exist are created with `new_partitions`; None: they must exist.
    """
    async with Client({**properties, **spec.client_properties()}) as client:
        names = [topic.name for topic in spec.topics]
        cluster = await _require_topics(client, names, new_partitions)
        sizes = {t.name: len(cluster.topics[t.name].partitions) for t in spec.topics}
        topics = tuple(ProducedTopic(name, size, lanes or size) for name, size in sizes.items())
        spec = replace(spec, topics=topics)
        for topic in topics:  # raises for invalid sizes or payloads before the folder is created
            make_writer(spec, topic)
        description = {
            "run": spec.run,
            "role": f"producer {spec.producer}",
            "promises": {"delivery": "at_least_once", "order": True},
            "acks": spec.acks,
            "topics": {
                topic.name: {"lanes": topic.lanes, "partitions": topic.partitions}
                for topic in topics
            },
            "topic_codes": {topic_code(topic_hash(topic.name)): topic.name for topic in topics},
            "clusters": {"source": _describe_cluster(properties, cluster)},
            "compacted": {"source": sorted(await find_compacted_topics(client, sizes))},
            "groups": [],
            "workload": {"size_bytes": spec.size_bytes},
        }
        async with _open_ledgers(folder, description, worker="producer") as (recorder, log, events):
            first_numbers = first_free_numbers(
                log.lines(), spec.producer, {t.name: t.lanes for t in topics}
            )
            incarnation = earlier_incarnation(log.lines(), spec.producer)
            spec = replace(spec, incarnation=incarnation, first_numbers=first_numbers)
            watch = _write_events(events, on_progress)
            control = LocalControl(groups=["elsewhere"], on_progress=watch)
            with _handle_signals(control.finish, control.stop):
                return await produce(spec, client, recorder, control)


async def consume_standalone(
    spec: ConsumerSpec,
    options: ReadOptions,
    properties: Mapping[str, str],
    *,
    folder: Path,
    on_progress: OnProgress,
    on_run: Callable[[NewestRun], None] = lambda _newest: None,
) -> ConsumerSummary:
    """Read the topics and record every delivery until a signal or a stop condition.

    `on_run` is called with the run that was found, if the spec names none.
    """
    if not spec.run:
        _refuse_used_folder(folder)
    async with Client({**properties, **spec.client_properties()}) as client:
        cluster = await _require_topics(client, list(options.topics), options.new_partitions)
        points = await _starting_points(client, cluster, options)
        if not spec.run and options.from_start:
            starts = {point.log: point.offset for point in points}
            isolation = spec.fetching.isolation
            newest = await find_newest_run(client, starts, isolation=isolation)
            if newest is not None:
                on_run(newest)
                spec = replace(spec, run=newest.run)
        spec = replace(
            spec,
            topics=tuple(dict.fromkeys(point.recorded_name for point in points)),
            partitions=points,
            from_start=options.from_start,
        )
        description = {
            "run": spec.run,
            "role": f"consumer {spec.consumer}",
            "topics": {},
            "clusters": {"target": _describe_cluster(properties, cluster)},
            "compacted": {"target": await _list_compacted_topics(client, options)},
            "groups": [spec.group],
            "isolation": spec.fetching.isolation,
        }
        async with _open_ledgers(folder, description, worker="consumer") as (recorder, log, events):
            stop_condition = _StopCondition(options, _write_events(events, on_progress))
            control = LocalControl(
                groups=[spec.group],
                commit=log.append_in_thread,
                on_progress=stop_condition.on_progress,
            )
            with _handle_signals(control.stop, control.stop):
                summary = await stop_condition.watch(
                    control, consume(spec, client, recorder, control)
                )
            if not spec.run:
                _record_run_id(folder, summary.run)
            return summary


# The counters of the event stream of a run, and the fields of a report that they come from.
_COUNTERS: Final = {
    "sent": "attempts",
    "acknowledged": "ok",
    "failed": "failed",
    "unknown": "unknown",
    "received": "received",
}


def _write_events(events: RunEvents, on_progress: OnProgress) -> OnProgress:
    """Write reports to the event stream, too."""

    def watch(report: Mapping[str, Any]) -> None:
        on_progress(report)
        counters = {name: int(report[key]) for name, key in _COUNTERS.items() if key in report}
        events.on_progress(counters, sum_latencies([dict(report)]))

    return watch


class _StopCondition:
    """Stops a consumer when one of its limits is reached."""

    def __init__(self, options: ReadOptions, on_progress: OnProgress) -> None:
        self._options = options
        self._on_progress = on_progress
        self._messages = 0
        self._arrived = 0  # including markers, which are not messages
        self._changed_s = math.inf  # `idle_s` counts from the first message

    def on_progress(self, report: Mapping[str, Any]) -> None:
        self._messages = report["received"] + report["unreadable"]
        arrived = self._messages + report["markers"]
        if arrived != self._arrived:
            self._changed_s = asyncio.get_running_loop().time()
        self._arrived = arrived
        self._on_progress(report)

    async def watch(self, control: LocalControl, work: Any) -> ConsumerSummary:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        task: asyncio.Task[ConsumerSummary] = run_awaited("reading", work)
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            limits = (
                (loop.time() - started_s, self._options.duration_s),
                (loop.time() - self._changed_s, self._options.idle_s),
                (self._messages, self._options.messages),
            )
            if any(most is not None and value >= most for value, most in limits):
                control.stop()
        return await task


async def _require_topics(
    client: Client, names: list[str], new_partitions: int | None
) -> ClusterMetadata:
    """Return the metadata of topics; those that do not exist are created, if the user wants it."""
    cluster = await client.metadata(names)
    missing = _list_missing(cluster, names)
    if missing and new_partitions is not None:
        try:
            await client.admin.create_topics([NewTopic(name, new_partitions) for name in missing])
        except KafkaError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:  # the other end has just created it
                raise
        deadline_s = time.monotonic() + _TOPIC_APPEARS_S
        while missing and time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)
            cluster = await client.metadata(names)
            missing = _list_missing(cluster, names)
    if missing:
        raise UsageError(
            f"topic {', '.join(missing)} does not exist on this cluster",
            remedy="--create-topics 4 creates it with 4 partitions; so does Kafka's"
            " kafka-topics.sh --create --topic NAME --partitions 4",
        )
    return cluster


def _list_missing(cluster: ClusterMetadata, names: list[str]) -> list[str]:
    return [name for name in names if not cluster.topics[name].partitions]


async def _starting_points(
    client: Client, cluster: ClusterMetadata, options: ReadOptions
) -> tuple[StartingPoint, ...]:
    logs = [log for topic in options.topics for log in cluster.partitions_of(topic)]
    which = EARLIEST if options.from_start else LATEST
    found = await client.list_offsets(dict.fromkeys(logs, which))
    return tuple(
        StartingPoint(
            log.topic, log.partition, found[log].offset, _strip_prefix(log.topic, options.prefix)
        )
        for log in logs
    )


async def _list_compacted_topics(client: Client, options: ReadOptions) -> list[str]:
    """The compacted ones of the topics that are read, by the producers' names."""
    found = await find_compacted_topics(client, options.topics)
    return sorted(_strip_prefix(topic, options.prefix) for topic in found)


def _strip_prefix(topic: str, prefix: str) -> str:
    if not topic.startswith(prefix):
        raise UsageError(
            f"--topic-prefix {prefix!r} does not fit topic {topic!r}: its name does not begin so",
            remedy="give --topics as they are named on the target, and the prefix that the mirror"
            " has added to all of them",
        )
    return topic.removeprefix(prefix)


def _describe_cluster(properties: Mapping[str, str], cluster: ClusterMetadata) -> Json:
    return {
        "bootstrap.servers": properties.get("bootstrap.servers", ""),
        "cluster_id": cluster.cluster_id,
    }


@asynccontextmanager
async def _open_ledgers(
    folder: Path, description: Json, *, worker: str
) -> AsyncIterator[tuple[Recorder, CommitLog, RunEvents]]:
    """Open the ledgers under a new lease; on exit `run.json` gets the state of the run."""
    description = description | describe_invocation() | {"state": "running", "warm_up_us": 0}
    if not (folder / RUN_FILE).exists():
        create_run(folder, description)
    plan = _read_matching_plan(folder, description)
    with CommitLog(folder) as log:
        state: Outcome = "interrupted"
        failure = ""
        events = RunEvents(folder, name=description["role"])
        update_run(folder, plan | {"state": "running", "driver": description["driver"]})
        try:
            leases = sum(line["kind"] == "lease" for line in log.lines())
            recorder = Recorder(
                folder, worker=worker, epoch=leases + 1, commit=log.append_in_thread
            )
            lease = {"kind": "lease", "worker": worker, "epoch": recorder.epoch}
            log.append({**lease, "host": machine_clock()})
            yield recorder, log, events
            state = "finished"
        except ShoalError as error:
            failure = error.message
            raise
        finally:
            events.close("failed" if failure else state, failure)
            close_run(folder, state)


def _read_matching_plan(folder: Path, description: Json) -> Json:
    """Read `run.json`; refuse a folder that this process may not continue."""
    plan = read_plan(folder)
    if plan["format"] != FORMAT:
        raise UsageError(
            f"{folder} contains ledgers of format {plan['format']}; this version writes {FORMAT}",
            remedy="choose another folder; shoal audit judges folders of all formats together",
        )
    for name in ("run", "role", "topics"):
        if plan.get(name) != description[name]:
            raise UsageError(
                f"{folder} contains ledgers of another run: its {name} is {plan.get(name)!r:.80},"
                f" not {description[name]!r:.80}",
                remedy="choose another folder",
            )
    return plan


def _refuse_used_folder(folder: Path) -> None:
    if not (folder / RUN_FILE).exists():
        return
    plan = read_plan(folder)
    run = str(plan.get("run", ""))
    is_consumer = str(plan.get("role", "")).startswith("consumer")
    again = f"continue them with --run {run}, or " if run and is_consumer else ""
    raise UsageError(
        f"{folder} already contains ledgers of run {run}", remedy=f"{again}choose another folder"
    )


def _record_run_id(folder: Path, run: str) -> None:
    """Write the run that a consumer without `--run` found to `run.json`."""
    update_run(folder, read_plan(folder) | {"run": run})


@contextmanager
def _handle_signals(first: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM call `first`, and later ones call `again`."""
    calls = iter((first,))
    loop = asyncio.get_running_loop()

    def call() -> None:
        next(calls, again)()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
