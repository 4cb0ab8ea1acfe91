"""The tasks of an audit as a Spark data source: each partition is one task.

Rules:
- A task reads the row groups that it needs by itself, so no ledger row ever enters the JVM;
  what comes back are the parts of its answer (`shoal.audit.parts`), as Arrow batches.
- The tasks travel as one option, pickled by and for this package only, and every worker gets
  just its own.
"""

import base64
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shoal.audit.judge import judge_task
from shoal.audit.parts import Part, from_table, to_record_batch
from shoal.audit.setting import Setting
from shoal.audit.tasks import LedgerWalk, Task
from shoal.model.errors import LedgerError, ShoalError, SystemFailure

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
        return _CellReader(self.options["work"])


class _Work(InputPartition):
    def __init__(self, number: int, task: Task, setting: Setting) -> None:
        super().__init__(number)
        self.number = number
        self.task = task
        self.setting = setting


class _CellReader(DataSourceReader):
    def __init__(self, work: str) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        tasks, setting = _unpacked(self._work)
        return [_Work(number, task, setting) for number, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        work = cast("_Work", partition)
        yield to_record_batch(work.number, judge_task(work.task, work.setting))


def run_on(session: SparkSession, tasks: Sequence[Task], setting: Setting) -> list[list[Part]]:
    """The answers of all tasks, in their order."""
    if not tasks:
        return []
    session.dataSource.register(CellSource)
    frame = session.read.format(FORMAT).option("work", _packed(tasks, setting)).load()
    try:
        answers = from_table(frame.toArrow())
    except PySparkException as error:
        raise _cause(error) from error
    return [answers.get(number, []) for number in range(len(tasks))]


def _cause(error: PySparkException) -> ShoalError:
    """What a task that failed in another process had to say, as the error that it was."""
    said = re.search(r"shoal\.model\.errors\.LedgerError: (.+)", str(error))
    if said is not None:
        return LedgerError(said[1])
    return SystemFailure(f"Spark could not run the audit: {str(error).strip()[-1000:]}")


def warm_up(session: SparkSession) -> None:
    """Run a task without work: the first one pays for Spark's SQL engine and Python workers."""
    nothing = Setting(run="", promises={}, has_mirror=False, groups=())
    run_on(session, [LedgerWalk(0, "log", ())], nothing)


def _packed(tasks: Sequence[Task], setting: Setting) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps((list(tasks), setting)), 1)).decode()


def _unpacked(work: str) -> tuple[list[Task], Setting]:
    # Our own driver wrote this a moment ago; it never comes from outside.
    unpacked = pickle.loads(zlib.decompress(base64.b64decode(work)))  # noqa: S301
    return cast("tuple[list[Task], Setting]", unpacked)
