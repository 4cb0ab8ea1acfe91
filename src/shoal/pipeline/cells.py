"""The tasks of an audit as a Spark data source: each partition is one task.

Rules:
- A task reads the row groups that it needs by itself, so no ledger row ever enters the JVM;
  what comes back are the parts of its answer (`shoal.audit.parts`), as Arrow batches.
- The tasks travel as one option, pickled by and for this package only. Spark asks several
  Python processes about a source before one reads from it; those only hand the pickles on,
  and this module imports nothing heavy, so that each of them starts quickly.
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
    from shoal.audit.context import Setting
    from shoal.audit.parts import Part
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
        return _CellReader(self.options["tasks"], self.options["setting"])


class _Work(InputPartition):
    """One task and its setting, as text."""

    def __init__(self, number: int, task: str, setting: str) -> None:
        super().__init__(number)
        self.number = number
        self.task = task
        self.setting = setting


class _CellReader(DataSourceReader):
    def __init__(self, tasks: str, setting: str) -> None:
        self._tasks = tasks
        self._setting = setting

    def partitions(self) -> Sequence[InputPartition]:
        tasks = json.loads(self._tasks)
        return [_Work(number, task, self._setting) for number, task in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from shoal.audit.audit import judge_task
        from shoal.audit.memory import spare_what_is_loaded
        from shoal.audit.parts import to_record_batch

        work = cast("_Work", partition)
        answer = judge_task(unpacked(work.task), unpacked(work.setting))
        yield to_record_batch(work.number, answer)
        spare_what_is_loaded()


def run_on(
    session: SparkSession, tasks: "Sequence[Task]", setting: "Setting"
) -> "list[list[Part]]":
    """The answers of all tasks, in their order."""
    from shoal.audit.parts import from_table

    if not tasks:
        return []
    session.dataSource.register(CellSource)
    work = {"tasks": json.dumps([packed(task) for task in tasks]), "setting": packed(setting)}
    frame = session.read.format(FORMAT).options(**work).load()
    try:
        answers = from_table(frame.toArrow())
    except PySparkException as error:
        raise cause_of(error) from error
    return [answers.get(number, []) for number in range(len(tasks))]


def cause_of(error: PySparkException) -> ShoalError:
    """What a task that failed in another process had to say, as the error that it was."""
    said = re.search(r"shoal\.model\.errors\.LedgerError: (.+)", str(error))
    if said is not None:
        return LedgerError(said[1])
    return SystemFailure(f"Spark could not run the audit: {str(error).strip()[-1000:]}")


def warm_up(session: SparkSession) -> None:
    """Run a task without work: the first one pays for Spark's SQL engine and Python workers."""
    from shoal.audit.context import Setting
    from shoal.audit.tasks import LedgerWalk

    nothing = Setting(run="", promises={}, has_mirror=False, groups=())
    run_on(session, [LedgerWalk(0, "log", ())], nothing)


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value), 1)).decode()


def unpacked(text: str) -> Any:
    # Our own driver wrote this a moment ago; it never comes from outside.
    return pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301
