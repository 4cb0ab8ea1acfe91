"""What Spark calls for `df.write.format("shoal")` and `df.writeStream.format("shoal")`.

Rules:
- Spark creates and pickles these objects in several Python processes; this module imports nothing
  heavy, and they hold only the options and the identity of the driver.
- Rows are only ever appended: the mode `overwrite` is refused.
- An atomic write begins where Spark asks for the writer, once for each write, in the driver.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from shoal.model.errors import ConfigError, SystemFailure
from shoal.pipeline.sink.options import WriteQuery, parse_write

if TYPE_CHECKING:
    from shoal.client.produce.sequencing import ProducerIdentity
    from shoal.pipeline.sink.decisions import AtomicWrite, OpenTransaction


@dataclass
class RowsWritten(WriterCommitMessage):
    """What a task wrote, and the transaction that it left open."""

    rows: int
    transaction: "OpenTransaction | None" = None


def make_writer(
    options: dict[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """Return the writer of a table; an atomic one has begun."""
    _refuse_overwrite(overwrite)
    query = parse_write(options, schema)
    return ShoalWriter(query) if query.name is None else AtomicWriter(query, query.name)


def make_stream_writer(
    options: dict[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a stream."""
    _refuse_overwrite(overwrite)
    return ShoalStreamWriter(parse_write(options, schema, is_stream=True))


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "topics cannot be overwritten", remedy='append: .mode("append"), .outputMode("append")'
        )


def _write_rows(query: WriteQuery, iterator: Iterator[Any]) -> RowsWritten:
    from shoal.pipeline.sink.writing import write_rows

    return RowsWritten(write_rows(query, iterator))


class ShoalWriter(DataSourceArrowWriter):
    """Writes a table at least once."""

    def __init__(self, query: WriteQuery) -> None:
        self._query = query

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write_rows(self._query, iterator)


class ShoalStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream at least once."""

    def __init__(self, query: WriteQuery) -> None:
        self._query = query

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write_rows(self._query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: tasks end when their rows are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what was acknowledged stays."""


class AtomicWriter(DataSourceArrowWriter):
    """Writes a table so that all of its rows become visible, or none."""

    def __init__(self, query: WriteQuery, name: str) -> None:
        self._query = query
        self._name = name
        self._write_id = uuid.uuid4().hex
        self._began_s = time.time()
        self._driver: ProducerIdentity = self._run(lambda write: write.begin())

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from shoal.pipeline.sink.decisions import OpenTransaction, id_prefix
        from shoal.pipeline.sink.writing import write_in_transaction

        context = TaskContext.get()
        attempt = uuid.uuid4().hex if context is None else str(context.taskAttemptId())
        transactional_id = id_prefix(self._name, self._write_id) + attempt
        rows, identity = write_in_transaction(self._query, iterator, transactional_id)
        if identity is None:
            return RowsWritten(rows)
        opened = OpenTransaction(transactional_id, identity.producer_id, identity.epoch)
        return RowsWritten(rows, opened)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from shoal.pipeline.sink.decisions import CommitDecision

        self._refuse_expired()
        opened = tuple(
            message.transaction
            for message in messages
            if isinstance(message, RowsWritten) and message.transaction is not None
        )
        decision = CommitDecision(self._write_id, opened)
        self._run(lambda write: write.commit(self._driver, decision))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        del messages
        self._run(lambda write: write.abort(self._driver, self._write_id))

    def _refuse_expired(self) -> None:
        """Decide nothing that brokers may have aborted already."""
        limit_s = int(self._query.properties["transaction.timeout.ms"]) / 1000
        if (took_s := time.time() - self._began_s) > limit_s:
            raise SystemFailure(
                f"the atomic write of {self._name} took {took_s:.0f} s, longer than brokers keep"
                f" its transactions open ({limit_s:g} s); nothing was written",
                remedy="raise kafka.transaction.timeout.ms (brokers limit it by"
                " transaction.max.timeout.ms), or write fewer rows at once",
            )

    def _run(self, act: "Callable[[AtomicWrite], Coroutine[Any, Any, Any]]") -> Any:
        from shoal.client.client import Client
        from shoal.pipeline.sink.decisions import AtomicWrite

        async def run() -> Any:
            async with Client(dict(self._query.properties)) as client:
                return await act(AtomicWrite(client, self._name))

        return asyncio.run(run())
