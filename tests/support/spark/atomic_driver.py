"""Drivers of atomic writes that are killed at each of their requests, one process each.

    python -m support.spark.atomic_driver BOOTSTRAP TOPIC NAME EVERY

For each request of a driver there is one driver that is killed before it sends that request, and
one that is killed when it has sent it and before it reads an answer. Each writes rows with its own
number and is followed by a start that completes or aborts what it left. One JSON line for each:
which step, whether the driver ended in any other way, and what it was about to do.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from shoal.client.client import Client
from shoal.client.transport import connection
from shoal.pipeline.sink import decisions, rows, writing
from shoal.pipeline.sink.decisions import AtomicWrite
from shoal.pipeline.sink.writer import AtomicWriter, make_writer

ROWS_OF_TASKS = (5, 3, 0)
PARTITIONS = 3
_LOADED = (decisions, rows, writing)


def tables(number: int) -> list[Iterator[Any]]:
    """The rows of each task; every task writes to every partition."""
    tasks = []
    for task, count in enumerate(ROWS_OF_TASKS):
        values = [b"%d:%d:%d" % (number, task, row) for row in range(count)]
        partitions = pa.array([row % PARTITIONS for row in range(count)], pa.int32())
        table = pa.table({"value": pa.array(values, pa.binary()), "partition": partitions})
        tasks.append(iter(table.to_batches()))
    return tasks


class _Killer:
    """Kills this process at its n-th request."""

    def __init__(self, step: int, *, is_sent: bool) -> None:
        self._left = step
        self._is_sent = is_sent

    def install(self) -> None:
        send = connection.Connection._send

        def send_or_die(self_: Any, call: Any) -> None:
            self._left -= 1
            if self._left == 0 and not self._is_sent:
                os.kill(os.getpid(), signal.SIGKILL)
            send(self_, call)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        connection.Connection._send = send_or_die  # type: ignore[assignment, method-assign]


def write(options: dict[str, str], number: int) -> None:
    """What Spark does with a writer: begin, tasks, commit."""
    schema = StructType().add("value", "binary").add("partition", "integer")
    writer = make_writer(options, schema, overwrite=False)
    assert isinstance(writer, AtomicWriter)
    writer.commit([writer.write(table) for table in tables(number)])


def run_killed(options: dict[str, str], number: int, step: int, *, is_sent: bool) -> bool:
    """Run a driver in a process of its own; whether it ended before it was killed."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            _Killer(step, is_sent=is_sent).install()
            write(options, number)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert os.waitstatus_to_exitcode(status) == 0, f"step {step}: {status}"
    return True


def recover(options: dict[str, str]) -> None:
    """What the next start of the job does first."""

    async def begin() -> None:
        async with Client({"bootstrap.servers": options["kafka.bootstrap.servers"]}) as client:
            await AtomicWrite(client, options["name"]).begin()

    asyncio.run(begin())


def main(bootstrap: str, topic: str, name: str, every: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "atomic": "true", "name": name}
    number, step, has_ended = 0, 1, False
    while not has_ended:
        for is_sent in (False, True):
            number += 1
            has_ended = run_killed(options, number, step, is_sent=is_sent)
            # A write that ended is visible before any other start.
            if not has_ended:
                recover(options)
            sys.stdout.write(
                json.dumps(
                    {"number": number, "step": step, "is_sent": is_sent, "has_ended": has_ended}
                )
                + "\n"
            )
            sys.stdout.flush()
        step += int(every)


if __name__ == "__main__":
    main(*sys.argv[1:5])
