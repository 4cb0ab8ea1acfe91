"""Files that tasks write beside them, into the scratch folder of an audit.

The folder is where the segments are: on this machine, or on another file system by its URL.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from shoal.model.errors import SystemFailure
from shoal.storage.files import move_file, open_to_write, write_bytes
from shoal.storage.places import is_url, join_place

SCRATCH: Final = "scratch"  # the folder in a run's folder that has those of audits


class ScratchFile(NamedTuple):
    """A new file; it exists for others once it is closed."""

    place: str
    sink: Any  # open for writing


@contextmanager
def scratch_file(scratch: str, kind: str) -> Iterator[ScratchFile]:
    """Open a new file; its name is unique, since Spark may run a task twice."""
    place = join_place(scratch, f"{kind}-{uuid.uuid4().hex}.parquet")
    with _reporting_failures(scratch), open_to_write(place) as sink:
        yield ScratchFile(place, sink)


def write_under_name(scratch: str, name: str, content: Any) -> None:
    """Write a file that has its name once it is complete; the same may be written twice."""
    place = join_place(scratch, name)
    with _reporting_failures(scratch):
        if is_url(place):
            write_bytes(place, content)
            return
        fresh = f"{place}-{uuid.uuid4().hex}"
        write_bytes(fresh, content)
        move_file(fresh, place)


@contextmanager
def _reporting_failures(scratch: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SystemFailure(
            f"a task of the audit cannot write to {scratch}: {error};"
            " put the run's folder on a file system that all executors can write to"
        ) from error
