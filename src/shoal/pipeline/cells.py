"""The tasks of an audit as a Spark data source: each partition is one task.

Rules:
- A task reads the row groups that it needs directly, so no ledger row ever enters the JVM. It
  returns the parts of its answer (`shoal.audit.parts`) as Arrow batches.
- The tasks are passed as one option, pickled by and for this package only. Spark starts several
  Python processes for a source before one reads from it. Those only pass the pickles on, and this
  module imports nothing heavy, so that each of them starts quickly.
"""

import base64
import json
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shoal.model.errors import LedgerError, ShoalError, SystemFailure

if TYPE_CHECKING:
    from shoal.audit.context import AuditContext
    from shoal.audit.parts import TaskPart
    from shoal.audit.tasks import Task

FORMAT: Final = "shoal-audit-cells"
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
        return _CellReader(self.options["tasks"], self.options["context"])


class _Work(InputPartition):
    """One task and its context, as text."""

    def __init__(self, number: int, task: str, context: str) -> None:
        super().__init__(number)
        self.number = number
        self.task = task
        self.context = context


class _CellReader(DataSourceReader):
    def __init__(self, tasks: str, context: str) -> None:
        self._tasks = tasks
        self._context = context

    def partitions(self) -> Sequence[InputPartition]:
        tasks = json.loads(self._tasks)
        return [_Work(number, task, self._context) for number, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from shoal.audit.audit import judge_task
        from shoal.audit.memory import freeze_loaded_objects
        from shoal.audit.parts import to_record_batch

        work = cast("_Work", partition)
        answer = judge_task(unpickle_text(work.task), unpickle_text(work.context))
        yield to_record_batch(work.number, answer)
        freeze_loaded_objects()


def run_on(
    session: SparkSession, tasks: "Sequence[Task]", context: "AuditContext"
) -> "list[list[TaskPart]]":
    """Run all tasks and return their answers, in the order of the tasks."""
    from shoal.audit.parts import from_table

    if not tasks:
        return []
    session.dataSource.register(CellSource)
    work = {
        "tasks": json.dumps([pickle_to_text(task) for task in tasks]),
        "context": pickle_to_text(context),
    }
    frame = session.read.format(FORMAT).options(**work).load()
    try:
        answers = from_table(frame.toArrow())
    except PySparkException as error:
        raise cause_of(error) from error
    return [answers.get(number, []) for number in range(len(tasks))]


def cause_of(error: PySparkException) -> ShoalError:
    """Return the error of a task that failed in another process."""
    match = re.search(r"shoal\.model\.errors\.LedgerError: (.+)", str(error))
    if match is not None:
        return LedgerError(match[1])
    return SystemFailure(f"Spark could not run the audit: {str(error).strip()[-1000:]}")


def warm_up(session: SparkSession) -> None:
    """Run an empty task: the first one starts Spark's SQL engine and Python workers."""
    from shoal.audit.context import AuditContext
    from shoal.audit.tasks import LedgerWalk

    nothing = AuditContext(run="", promises={}, has_mirror=False, groups=())
    run_on(session, [LedgerWalk(0, "log", ())], nothing)


def pickle_to_text(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value), 1)).decode()


def unpickle_text(text: str) -> Any:
    # The driver of this audit wrote the text; it is never external input.
    return pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301
