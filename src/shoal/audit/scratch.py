"""Files that tasks write beside them, into the scratch folder of an audit."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.model.errors import SystemFailure

SCRATCH: Final = "scratch"  # the folder in a run's folder that has those of audits


@contextmanager
def scratch_file(scratch: str, kind: str) -> Iterator[Path]:
    """Return a new path; its name is unique, since Spark may run a task twice."""
    try:
        yield Path(scratch, f"{kind}-{uuid.uuid4().hex}.parquet")
    except OSError as error:
        raise SystemFailure(
            f"a task of the audit cannot write to {scratch}: {error};"
            " put the run's folder on a file system that all executors can write to"
        ) from error
