"""The tasks of an audit as a Spark data source: each partition is one task, or several.

Rules:
- If Spark has more slots than cores, a job has as many partitions as cores, with a few tasks each;
  jobs follow one another. So a lost partition loses little, and no more than cores compute.
- A task reads the row groups that it needs directly, so no ledger row ever enters the JVM. It
  returns the parts of its answer (`shoal.audit.parts`) as Arrow batches.
- The tasks and their context are passed as parcels (`parcels`): what is large is a file in the
  scratch folder, and a Python worker reads the context once. Spark starts several Python processes
  for a source before one reads from it. Those only pass the pickles on, and this module imports
  nothing heavy, so that each of them starts quickly.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shoal.pipeline.failures import translate_failures
from shoal.pipeline.parcels import (
    make_parcel,
    open_parcel,
    open_shared,
    pickle_to_text,
    unpickle_text,
)
from shoal.pipeline.slots import limit_width

if TYPE_CHECKING:
    from shoal.audit.context import AuditContext
    from shoal.audit.parts import TaskPart
    from shoal.audit.tasks import Task

FORMAT: Final = "shoal-audit-cells"
TASKS_PER_PARTITION: Final = 8  # of a job whose partitions are limited
SCHEMA: Final = "task int, kind string, label string, values array<bigint>"


class CellSource(DataSource):
    """Runs tasks and returns the parts of their answers as rows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _CellReader(self.options["work"])


class _Work(InputPartition):
    """Tasks with their numbers, as parcels; they run one after another."""

    def __init__(self, place: int, tasks: list[tuple[int, str]]) -> None:
        super().__init__(place)
        self.tasks = tasks


class _CellReader(DataSourceReader):
    """Spark sends it with every task, so it has only the parcels of the list and the context."""

    def __init__(self, work: str) -> None:
        self._tasks, self._context, self._width = json.loads(work)

    def partitions(self) -> Sequence[InputPartition]:
        tasks = list(enumerate(json.loads(open_parcel(self._tasks))))
        width = self._width or len(tasks)
        return [_Work(place, tasks[place::width]) for place in range(min(width, len(tasks)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from shoal.audit.audit import judge_task
        from shoal.audit.memory import freeze_loaded_objects
        from shoal.audit.parts import to_record_batch

        work = cast("_Work", partition)
        for number, task in work.tasks:
            answer = judge_task(unpickle_text(task), open_shared(self._context))
            yield to_record_batch(number, answer)
        freeze_loaded_objects()


def run_on(
    session: SparkSession, tasks: "Sequence[Task]", context: "AuditContext"
) -> "list[list[TaskPart]]":
    """Run all tasks and return their answers, in the order of the tasks."""
    if not tasks:
        return []
    session.dataSource.register(CellSource)
    shared = make_parcel(pickle_to_text(context), context.scratch)
    width = limit_width(session)
    most = width * TASKS_PER_PARTITION or len(tasks)
    jobs = [tasks[start : start + most] for start in range(0, len(tasks), most)]
    how = (shared, width)
    return [answer for job in jobs for answer in _run_job(session, job, context.scratch, how)]


def _run_job(
    session: SparkSession,
    tasks: "Sequence[Task]",
    scratch: str | None,
    how: tuple[list[str], int],
) -> "list[list[TaskPart]]":
    """Run tasks as one job; `how` is the parcel of the context, and the most partitions."""
    from shoal.audit.parts import from_table

    texts = [pickle_to_text(task) for task in tasks]
    work = [make_parcel(json.dumps(texts), scratch), *how]
    frame = session.read.format(FORMAT).options(work=json.dumps(work)).load()
    with translate_failures():
        answers = from_table(frame.toArrow())
    return [answers.get(number, []) for number in range(len(tasks))]


def warm_up(session: SparkSession) -> None:
    """Run an empty task: the first one starts Spark's SQL engine and Python workers."""
    from shoal.audit.context import AuditContext
    from shoal.audit.tasks import LedgerWalk

    nothing = AuditContext(run="", promises={}, has_mirror=False, groups=())
    run_on(session, [LedgerWalk(0, "log", ())], nothing)
