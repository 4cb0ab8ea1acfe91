"""A producer or a consumer that runs alone: one process, one folder of ledgers, no driver.

Rules:
- Two places that share nothing leave two folders of one run; an audit joins them. `run.json`
  names each cluster by its id, so that the judge sees whether a mirror lay between them.
- A folder is new, or left by an earlier process of the same role and run: then this one
  continues it under a newer lease, a producer with the same incarnation and above all numbers
  that may have been used. A folder of an older ledger format is not continued.
- The first signal ends it in order: a producer sends nothing new, waits for its answers and
  drains; a consumer seals what it has. The second ends it at once; what is sealed stays.
- A producer alone does not see its markers arrive: it writes them for as long as it is told.
"""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.results import EARLIEST, LATEST
from shoal.experiment.run import surroundings
from shoal.model.errors import UsageError
from shoal.model.ledger import FORMAT
from shoal.runtime.processes import machine_clock
from shoal.runtime.tasks import run_awaited
from shoal.workload.control import LocalControl
from shoal.workload.envelope import topic_code, topic_hash
from shoal.workload.receive.compacted import compacted_topics
from shoal.workload.receive.consumer import ConsumerSummary, consume
from shoal.workload.record.ledger import (
    RUN_FILE,
    CommitLog,
    create_run,
    earlier_incarnation,
    first_free_numbers,
    open_run,
    read_plan,
    update_run,
)
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.producer import ProducerSummary, produce, writer_of
from shoal.workload.specs import ConsumerSpec, ProducedTopic, ProducerSpec, StartingPoint

Json = dict[str, Any]
OnProgress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a consumer alone is told besides its spec."""

    topics: tuple[str, ...]  # as they are called on the cluster that is read
    prefix: str = ""  # what a mirror put before the names
    from_start: bool = True
    duration_s: float | None = None
    idle_s: float | None = None  # ends when nothing more has arrived for so long
    messages: int | None = None


async def produce_alone(
    spec: ProducerSpec,
    properties: Mapping[str, str],
    *,
    lanes: int | None,
    folder: Path,
    on_progress: OnProgress,
) -> ProducerSummary:
    """Send what the spec says; its topics need only names. `lanes`: partitions of the target."""
    async with Client({**properties, **spec.client_properties()}) as client:
        cluster = await _existing(client, [topic.name for topic in spec.topics])
        sizes = {t.name: len(cluster.topics[t.name].partitions) for t in spec.topics}
        topics = tuple(ProducedTopic(name, size, lanes or size) for name, size in sizes.items())
        spec = replace(spec, topics=topics)
        for topic in topics:  # what cannot be sent is refused before the folder is taken
            writer_of(spec, topic)
        described = {
            "run": spec.run,
            "role": f"producer {spec.producer}",
            "promises": {"delivery": "at_least_once", "order": True},
            "acks": spec.acks,
            "topics": {
                topic.name: {"lanes": topic.lanes, "partitions": topic.partitions}
                for topic in topics
            },
            "topic_codes": {topic_code(topic_hash(topic.name)): topic.name for topic in topics},
            "clusters": {"source": _described(properties, cluster)},
            "compacted": {"source": sorted(await compacted_topics(client, sizes))},
            "groups": [],
            "workload": {"size_bytes": spec.size_bytes},
        }
        async with _folder(folder, described, worker="producer") as (recorder, log):
            taken = first_free_numbers(
                log.lines(), spec.producer, {t.name: t.lanes for t in topics}
            )
            incarnation = earlier_incarnation(log.lines(), spec.producer)
            spec = replace(spec, incarnation=incarnation, first_numbers=taken)
            control = LocalControl(groups=["elsewhere"], on_progress=on_progress)
            with _signals(control.finish, control.stop):
                return await produce(spec, client, recorder, control)


async def consume_alone(
    spec: ConsumerSpec,
    reading: Reading,
    properties: Mapping[str, str],
    *,
    folder: Path,
    on_progress: OnProgress,
) -> ConsumerSummary:
    """Read the topics and record every delivery until told to stop."""
    async with Client({**properties, **spec.client_properties()}) as client:
        cluster = await _existing(client, list(reading.topics))
        points = await _starting_points(client, cluster, reading)
        spec = replace(
            spec,
            run=spec.run or _run_of(folder),
            topics=tuple(dict.fromkeys(point.recorded_name for point in points)),
            partitions=points,
            from_start=reading.from_start,
        )
        described = {
            "run": spec.run,
            "role": f"consumer {spec.consumer}",
            "topics": {},
            "clusters": {"target": _described(properties, cluster)},
            "compacted": {"target": await _compacted(client, reading)},
            "groups": [spec.group],
            "isolation": spec.fetching.isolation,
        }
        async with _folder(folder, described, worker="consumer") as (recorder, log):
            ending = _Ending(reading, on_progress)
            control = LocalControl(
                groups=[spec.group], commit=log.append_aside, on_progress=ending.on_progress
            )
            with _signals(control.stop, control.stop):
                summary = await ending.watch(control, consume(spec, client, recorder, control))
            if not spec.run:
                _name_run(folder, summary.run)
            return summary


class _Ending:
    """Stops a consumer when it has what it was told to wait for."""

    def __init__(self, reading: Reading, on_progress: OnProgress) -> None:
        self._reading = reading
        self._pass_on = on_progress
        self._messages = 0
        self._arrived = 0  # markers too, which are not messages
        self._changed_s = math.inf  # waits for the first message as long as it takes

    def on_progress(self, report: Mapping[str, Any]) -> None:
        self._messages = report["received"] + report["unreadable"]
        arrived = self._messages + report["markers"]
        if arrived != self._arrived:
            self._changed_s = asyncio.get_running_loop().time()
        self._arrived = arrived
        self._pass_on(report)

    async def watch(self, control: LocalControl, work: Any) -> ConsumerSummary:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        task: asyncio.Task[ConsumerSummary] = run_awaited("reading", work)
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            limits = (
                (loop.time() - started_s, self._reading.duration_s),
                (loop.time() - self._changed_s, self._reading.idle_s),
                (self._messages, self._reading.messages),
            )
            if any(most is not None and value >= most for value, most in limits):
                control.stop()
        return await task


async def _existing(client: Client, names: list[str]) -> ClusterMetadata:
    cluster = await client.metadata(names)
    missing = [name for name in names if not cluster.topics[name].partitions]
    if missing:
        raise UsageError(
            f"no topic {', '.join(missing)} on this cluster",
            remedy="create it first, e.g. kafka-topics.sh --create --topic NAME --partitions 4",
        )
    return cluster


async def _starting_points(
    client: Client, cluster: ClusterMetadata, reading: Reading
) -> tuple[StartingPoint, ...]:
    logs = [log for topic in reading.topics for log in cluster.partitions_of(topic)]
    which = EARLIEST if reading.from_start else LATEST
    found = await client.list_offsets(dict.fromkeys(logs, which))
    return tuple(
        StartingPoint(
            log.topic, log.partition, found[log].offset, _named(log.topic, reading.prefix)
        )
        for log in logs
    )


async def _compacted(client: Client, reading: Reading) -> list[str]:
    """The compacted topics of those that are read, as the producers call them."""
    found = await compacted_topics(client, reading.topics)
    return sorted(_named(topic, reading.prefix) for topic in found)


def _named(topic: str, prefix: str) -> str:
    if not topic.startswith(prefix):
        raise UsageError(
            f"topic {topic} does not begin with {prefix!r}",
            remedy="name the topics as the target calls them, and the prefix that the mirror adds",
        )
    return topic.removeprefix(prefix)


def _described(properties: Mapping[str, str], cluster: ClusterMetadata) -> Json:
    return {
        "bootstrap.servers": properties.get("bootstrap.servers", ""),
        "cluster_id": cluster.cluster_id,
    }


@asynccontextmanager
async def _folder(
    folder: Path, described: Json, *, worker: str
) -> AsyncIterator[tuple[Recorder, CommitLog]]:
    """The ledgers under a new lease; `run.json` says whether their writer ended in order."""
    described = described | surroundings() | {"state": "running", "warm_up_us": 0}
    if not (folder / RUN_FILE).exists():
        create_run(folder, described)
    plan = _checked_plan(folder, described)
    with CommitLog(folder) as log:
        state = "interrupted"
        update_run(folder, plan | {"state": "running", "driver": described["driver"]})
        try:
            leases = sum(line["kind"] == "lease" for line in log.lines())
            recorder = Recorder(folder, worker=worker, epoch=leases + 1, commit=log.append_aside)
            lease = {"kind": "lease", "worker": worker, "epoch": recorder.epoch}
            log.append({**lease, "host": machine_clock()})
            yield recorder, log
            state = "finished"
        finally:
            update_run(folder, dict(open_run(folder).plan) | {"state": state})


def _checked_plan(folder: Path, described: Json) -> Json:
    """What `run.json` says; refuses a folder that this process may not continue."""
    plan = read_plan(folder)
    if plan["format"] != FORMAT:
        raise UsageError(
            f"{folder} holds ledgers of format {plan['format']}; this version writes {FORMAT}",
            remedy="choose another folder; shoal audit judges folders of both formats together",
        )
    for name in ("run", "role", "topics"):
        if plan.get(name) != described[name]:
            raise UsageError(
                f"{folder} holds ledgers of another run: its {name} is {plan.get(name)!r:.80},"
                f" not {described[name]!r:.80}",
                remedy="choose another folder",
            )
    return plan


def _run_of(folder: Path) -> str:
    """What an earlier process found out, or nothing."""
    return str(open_run(folder).plan.get("run", "")) if (folder / RUN_FILE).exists() else ""


def _name_run(folder: Path, run: str) -> None:
    """A consumer that was told no run knows by now which one it read."""
    update_run(folder, dict(open_run(folder).plan) | {"run": run})


@contextmanager
def _signals(first: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call the first function, then the second."""
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
