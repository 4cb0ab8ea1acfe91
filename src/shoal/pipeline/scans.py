"""Scans of a run's logs as tasks of Spark, written straight to the run's ledgers.

Rules:
- A task reads one log, a range of offsets of a large one, or several small ones. It writes segments
  and returns their lines of the commit log; the driver commits them once the task has succeeded. A
  task that Spark tries again writes files of its own, so segments of a lost try do not count.
- Every log is read up to the end that it had before the first task started. The row with its range
  is written when all of its parts are read; a log that could not be read has none.
- A task fails when nothing arrives for long; there is no other time limit.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

from shoal.client.client import Client
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.run_folder import read_url
from shoal.model.topics import TopicPartition
from shoal.pipeline.failures import translate_failures
from shoal.pipeline.jobs import start_in_thread
from shoal.pipeline.slots import count_slots
from shoal.pipeline.source.offset_ranges import Range, split
from shoal.storage.places import is_url
from shoal.workers.specs import WorkerSpec
from shoal.workload.receive.scan import (
    Bounds,
    LogPart,
    find_bounds,
    read_parts,
    record_scan,
)
from shoal.workload.record.recorder import Recorder
from shoal.workload.specs import ScanSpec

# At 11 million records a second and core a part takes seconds; so does a lost one.
OFFSETS_PER_PART: Final = 2_000_000
# Small logs share tasks, of which each slot gets about so many.
TASKS_PER_SLOT: Final = 4
REPORT_EVERY_S: Final = 0.2

Json = dict[str, Any]
Commit = Callable[[Json], None]


@dataclass(frozen=True, slots=True)
class _Scan:
    """One scan, and what it has to read."""

    name: str
    client: Json
    spec: ScanSpec
    bounds: Bounds


class SparkScanner:
    """Runs the scans of runs as jobs of one session."""

    def __init__(self, session: SparkSession, *, offsets_per_part: int = OFFSETS_PER_PART) -> None:
        self._session = session
        self._offsets_per_part = offsets_per_part

    def scan(
        self,
        run_dir: Path,
        scans: Sequence[WorkerSpec],
        *,
        commit: Commit,
        report: Callable[[int, int], None],
    ) -> None:
        """Read all logs; `report` gets how many tasks have ended, and of how many."""
        segments = read_url(run_dir) or str(run_dir)
        planned = [found for spec in scans if (found := asyncio.run(_plan_scan(spec, commit)))]
        tasks = []
        for place, scan in enumerate(planned):
            pieces = pack(scan.bounds, self._offsets_per_part, self._count_tasks(len(planned)))
            # Ledger order is that of the names, so their numbers have the same width.
            width = len(str(len(pieces)))
            for number, ranges in enumerate(pieces):
                described = _describe_task(scan, ranges)
                place_of = {"scan": place, "name": f"{scan.name}-part-{number:0{width}}"}
                tasks.append({**described, **place_of, "place": segments})
        answers = self._run(f"{run_dir.name} scans", tasks, report) if tasks else []
        for place, scan in enumerate(planned):
            mine = [answer for answer in answers if answer["scan"] == place]
            asyncio.run(_commit_scan(scan, mine, segments, commit))

    def _count_tasks(self, scans: int) -> int:
        return max(1, count_slots(self._session) * TASKS_PER_SLOT // scans)

    def _run(
        self, group: str, tasks: Sequence[Json], report: Callable[[int, int], None]
    ) -> list[Json]:
        """Run the tasks as one job, in a thread: its progress is reported meanwhile."""
        context = self._session.sparkContext
        answers: list[list[str]] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                context.setJobGroup(group, "scans: read the logs")
                texts = [json.dumps(task) for task in tasks]
                answers.append(
                    context.parallelize(texts, len(texts)).mapPartitions(_scan_logs).collect()
                )
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                errors.append(error)

        thread = start_in_thread(self._session, run)
        try:
            while thread.is_alive():
                thread.join(REPORT_EVERY_S)
                report(self._count_done(group), len(tasks))
        except BaseException:
            context.cancelJobGroup(group)
            raise
        with translate_failures("read the logs"):
            for error in errors:
                raise error
        return [json.loads(text) for text in answers[0]]

    def _count_done(self, group: str) -> int:
        tracker = self._session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)


def pack(bounds: Bounds, most: int, tasks: int) -> list[list[Range]]:
    """Cut large logs into ranges of at most `most` offsets; let small ones share about `tasks`."""
    wholes = [Range(tp, found.start, found.end) for tp, found in bounds.items()]
    large = [part for part in wholes if part.end - part.start > most]
    small = sorted(
        (part for part in wholes if part.end - part.start <= most),
        key=lambda part: part.start - part.end,
    )
    shared = [small[place::tasks] for place in range(min(tasks, len(small)))]
    return [[part] for part in split(large, None, most=most)] + shared


async def _plan_scan(spec: WorkerSpec, commit: Commit) -> _Scan | None:
    """Ask a cluster what there is to read; None if it does not answer, which is recorded."""
    client, scan = spec.task["client"], ScanSpec.from_json(spec.task["spec"])
    try:
        async with Client(client) as connected:
            bounds = await find_bounds(scan, connected)
    except ShoalError as error:
        _commit_failure(spec.name, str(error), commit)
        return None
    return _Scan(spec.name, client, scan, bounds)


def _describe_task(scan: _Scan, ranges: Sequence[Range]) -> Json:
    wanted = {part.log for part in ranges}
    points = tuple(point for point in scan.spec.partitions if point.log in wanted)
    return {
        "client": scan.client,
        "spec": replace(scan.spec, partitions=points).to_json(),
        "parts": [[*part.log, part.start, part.end, scan.bounds[part.log].end] for part in ranges],
    }


async def _commit_scan(scan: _Scan, answers: Sequence[Json], segments: str, commit: Commit) -> None:
    """Commit what the tasks of one scan have written, then the ranges of complete logs."""
    starts: dict[TopicPartition, int] = {}
    incomplete: set[TopicPartition] = set()
    for answer in answers:
        for line in answer["lines"]:
            commit(line)
        if answer["error"]:
            _commit_failure(answer["name"], answer["error"], commit)
        for topic, partition, planned, start in answer["parts"]:
            tp = TopicPartition(topic, partition)
            if answer["error"]:
                incomplete.add(tp)
            # Below a part whose first records were deleted meanwhile nothing is complete.
            first = scan.bounds[tp].start
            starts[tp] = max(starts.get(tp, first), start if start > planned else first)
    complete = {tp: start for tp, start in starts.items() if tp not in incomplete}
    recorder = Recorder(segments, worker=scan.name, epoch=1, commit=commit)
    foreign = sum(answer["foreign"] for answer in answers)
    await record_scan(scan.spec, recorder, scan.bounds, starts=complete, foreign=foreign)


def _commit_failure(name: str, error: str, commit: Commit) -> None:
    line = {"kind": "ended", "worker": name, "epoch": 1, "reason": "failed", "error": error[:1000]}
    commit(line)


def _scan_logs(tasks: Iterable[str]) -> Iterator[str]:
    """Run the scan of one task; yields what the driver must commit."""
    for text in tasks:
        yield json.dumps(asyncio.run(_scan_parts(json.loads(text))))


async def _scan_parts(task: Json) -> Json:
    segments = task["place"]
    if not is_url(segments):
        require_run_folder(Path(segments))
    context = TaskContext.get()
    lines: list[Json] = []
    # Each try has an epoch of its own: names of files are never used twice.
    epoch = 1 if context is None else 1 + context.taskAttemptId()
    recorder = Recorder(segments, worker=task["name"], epoch=epoch, commit=lines.append)
    parts = {
        TopicPartition(topic, partition): LogPart(start, end, log_end)
        for topic, partition, start, end, log_end in task["parts"]
    }
    foreign, error = 0, ""
    starts = {tp: part.start for tp, part in parts.items()}
    try:
        async with Client(task["client"]) as client:
            spec = ScanSpec.from_json(task["spec"])
            summary, starts = await read_parts(spec, client, recorder, parts)
            foreign = summary.foreign
    except ShoalError as problem:
        error = str(problem)
    return {
        "scan": task["scan"],
        "name": task["name"],
        "lines": lines,
        "foreign": foreign,
        "error": error,
        "parts": [[*tp, part.start, starts[tp]] for tp, part in parts.items()],
    }


def require_run_folder(run_dir: Path) -> None:
    """Fail where this machine does not see the run's folder."""
    if not (run_dir / "run.json").is_file():
        # A remedy would be lost on the way to the driver, so the message contains it.
        raise SystemFailure(
            f"the run's folder {run_dir} does not exist on the executor's machine;"
            " put the runs on a file system that all executors share"
        )
