"""Values on their way from the driver to tasks: inside the task if small, else in a file.

A context with 100,000 streams has a megabyte. As part of every task it would pass through the
driver once for each of them. As a file in the audit's scratch folder it is read once by each Python
worker, and a task has only its path and checksum. The checksum also shows that the file is what
this driver wrote: no other file is ever unpickled.
"""

import base64
import functools
import hashlib
import pickle
import uuid
import zlib
from typing import Any, Final

from shoal.model.errors import SystemFailure
from shoal.storage.places import join_place

MOST_INSIDE: Final = 1 << 14  # characters; a longer text goes into a file
_IN_FILE: Final = "file"


def pickle_to_text(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value), 1)).decode()


def unpickle_text(text: str) -> Any:
    # The driver of this audit wrote the text; it is never external input.
    return pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301


def make_parcel(text: str, scratch: str | None) -> list[str]:
    """Return the text itself, or where it is: path and checksum."""
    if scratch is None or len(text) <= MOST_INSIDE:
        return [text]
    from shoal.storage.files import write_bytes

    path = join_place(scratch, f"parcel-{uuid.uuid4().hex}")
    content = text.encode()
    write_bytes(path, content)
    return [_IN_FILE, path, hashlib.sha256(content).hexdigest()]


def open_parcel(parcel: list[str]) -> str:
    """Return the text of a parcel."""
    if parcel[0] != _IN_FILE or len(parcel) == 1:
        return parcel[0]
    from shoal.storage.files import read_bytes

    _, path, checksum = parcel
    try:
        content = read_bytes(path)
    except OSError as error:
        raise SystemFailure(
            f"an executor cannot read {path}: {error};"
            " put the run's folder on a file system that all executors share"
        ) from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise SystemFailure(f"{path} is not what the driver of this audit wrote; audit again")
    return content.decode()


def open_shared(parcel: list[str]) -> Any:
    """Return the value of a parcel that many tasks share; a process reads it once."""
    return _open_shared(tuple(parcel))


@functools.lru_cache(maxsize=2)  # an audit changes its context at most once
def _open_shared(parcel: tuple[str, ...]) -> Any:
    return unpickle_text(open_parcel(list(parcel)))
