"""Failures of Spark as errors of this project: one message, and what to do.

Spark reports a failed job as a Java exception with hundreds of lines. `translate_failures` turns it
into the error that a task raised, or into a `SystemFailure` that names the cause.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from shoal.model import errors
from shoal.model.errors import ShoalError, SystemFailure

_CONF: Final = "PYSPARK_SUBMIT_ARGS='--conf {} pyspark-shell'"


class _Cause(NamedTuple):
    """A failure, recognised by a pattern in Spark's text."""

    pattern: str
    message: str
    remedy: str


# The first that matches counts, so causes come before their consequences.
_CAUSES: Final = (
    _Cause(
        r"is bigger than (?:local )?spark\.driver\.maxResultSize|maxResultSize",
        "the results of the tasks are larger than the driver accepts (spark.driver.maxResultSize)",
        "set " + _CONF.format("spark.driver.maxResultSize=4g"),
    ),
    _Cause(
        r"java\.lang\.OutOfMemoryError|GC overhead limit exceeded",
        "a JVM of Spark ran out of memory",
        "set "
        + _CONF.format("spark.driver.memory=4g")
        + ", and spark.executor.memory on a cluster",
    ),
    _Cause(
        r"MemoryError|Cannot allocate memory|exitCode:? 137|exit(?:ed with)? (?:status|code) 137",
        "a Python worker of Spark ran out of memory",
        "use fewer slots at once (--master 'local[1]'), or machines with more memory",
    ),
    _Cause(
        r"Cannot run program|No such file or directory.*python|No module named"
        r"|Python worker failed to connect back|Python in worker has different version",
        "a Python worker could not start on an executor",
        "install the same Python and packages on every executor, at the path of this interpreter"
        " (PYSPARK_PYTHON), or pack an environment (SHOAL_SPARK_ENVIRONMENT)",
    ),
    _Cause(
        r"ExecutorLostFailure|executor \S+ exited|Executor heartbeat timed out|worker lost"
        r"|Master removed our application|All masters are unresponsive",
        "Spark lost the executors that ran the tasks",
        "look at the executors' logs, and audit again when the cluster has executors",
    ),
    _Cause(
        r"Python worker exited unexpectedly",
        "a Python worker of Spark was killed",
        "look for the kernel's out-of-memory messages (dmesg) on the executor, and audit again",
    ),
    _Cause(
        r"Answer from Java side is empty|An error occurred while trying to connect"
        r"|Connection refused|Connection reset|SparkContext was (?:shut|stopped)"
        r"|stopped SparkContext",
        "the JVM of Spark has ended",
        "run shoal doctor, and audit again with more memory free",
    ),
)
_LONGEST: Final = 300
_PREAMBLE: Final = "An error occurred while calling"


@contextmanager
def translate_failures(action: str = "run the audit") -> Iterator[None]:
    """Raise a `ShoalError` in place of any exception of Spark."""
    try:
        yield
    except (PySparkException, Py4JError, EOFError, ConnectionError) as error:
        raise cause_of(error, action) from error


def cause_of(error: Exception, action: str = "run the audit") -> ShoalError:
    """Return the error of a task that failed in another process, or the failure of Spark."""
    text = str(error)
    found = re.search(r"shoal\.model\.errors\.(\w+): (.+)", text)
    kind = getattr(errors, found[1], None) if found else None
    if found and isinstance(kind, type) and issubclass(kind, ShoalError):
        return kind(found[2].strip())
    for cause in _CAUSES:
        if re.search(cause.pattern, text):
            return SystemFailure(f"Spark could not {action}: {cause.message}", remedy=cause.remedy)
    return SystemFailure(
        f"Spark could not {action}: {_shorten(text) or type(error).__name__}",
        remedy="run shoal doctor; shoal --verbose shows the whole error",
    )


def _shorten(text: str) -> str:
    """Return the last cause that a Java stack trace names, else its first line that says one."""
    found = (line.strip().removeprefix(": ") for line in text.splitlines())
    lines = [line for line in found if line and not line.startswith(_PREAMBLE)]
    causes = [line for line in lines if line.startswith("Caused by:")]
    one = causes[-1] if causes else next(iter(lines), "")
    return one[:_LONGEST]
