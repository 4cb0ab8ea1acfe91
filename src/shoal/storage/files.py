"""Reads and writes files by path or by URL; the only module that connects to other file systems.

Rules:
- A file of this machine is mapped into memory. Of a URL only the ranges that a reader asks for are
  fetched.
- A file on S3 exists once it is complete. Readers never depend on more: they know the names of
  files from the commit log, or from the task that has written one.
- One connection for each file system and process. A process that has one must not be forked.
- S3 is reached as its own tools reach it: credentials, `AWS_REGION` and `AWS_ENDPOINT_URL` from the
  environment. A server that does not answer is tried three times.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from shoal.model.errors import ShoalError
from shoal.storage.failures import NO_BUCKET, describe_failure
from shoal.storage.places import S3_SCHEMES, S3_SETTINGS, bucket_of, is_url, join_place

_AT_ONCE: Final = 16  # requests at once
_CONNECT_TIMEOUT_S: Final = 10
_REQUEST_TIMEOUT_S: Final = 60

Item = TypeVar("Item")
Found = TypeVar("Found")


class StoredFile(NamedTuple):
    """A file in a folder on another file system."""

    name: str  # relative to the folder
    changed_s: float


def connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    with reporting_failures("open", url):
        return _connect(url)


def _connect(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    if scheme in S3_SCHEMES:
        settings = tuple(os.environ.get(name, "") for name in S3_SETTINGS)
        return _connect_s3(settings), rest
    host = bucket_of(url)
    return _connect_to(f"{scheme}://{host}"), rest[len(host) :] or "/"


@functools.lru_cache(maxsize=8)
def _connect_s3(settings: tuple[str, ...]) -> Any:
    endpoint = settings[1] or settings[0]
    limits = {"connect_timeout": _CONNECT_TIMEOUT_S, "request_timeout": _REQUEST_TIMEOUT_S}
    # A small file is one request, which begins when the file is closed.
    options: dict[str, Any] = {**limits, "allow_delayed_open": True}
    if not endpoint:
        return fs.S3FileSystem(**options)
    parts = urlsplit(endpoint)
    return fs.S3FileSystem(
        endpoint_override=parts.netloc, scheme=parts.scheme or "https", **options
    )


@functools.lru_cache(maxsize=8)
def _connect_to(root: str) -> Any:
    return fs.FileSystem.from_uri(f"{root}/")[0]


@contextmanager
def reporting_failures(action: str, place: str) -> Iterator[None]:
    """Raise what `describe_failure` returns for a failure on another file system."""
    try:
        yield
    except ShoalError:
        raise
    except (OSError, pa.ArrowException) as error:
        if not is_url(place):
            raise
        raise describe_failure(action, place, error) from error


def open_to_read(place: str) -> Any:
    """Open a file at random access; of this machine, as a memory map."""
    if not is_url(place):
        # As a file that is open already: to find out where a path leads takes long.
        return pa.memory_map(place)
    with reporting_failures("read", place):
        files, path = _connect(place)
        return files.open_input_file(path)


@contextmanager
def open_to_write(place: str) -> Iterator[Any]:
    """Open a new file; it is complete at the end."""
    with reporting_failures("write to", place):
        if is_url(place):
            files, path = _connect(place)
            sink = files.open_output_stream(path)
        else:
            sink = pa.OSFile(place, "wb")
        with sink:
            yield sink


def read_bytes(place: str) -> bytes:
    if not is_url(place):
        return Path(place).read_bytes()
    with reporting_failures("read", place), open_to_read(place) as source:
        content: bytes = source.read()
        return content


def write_bytes(place: str, content: Any) -> None:
    """Write a file; one with that name is replaced."""
    with open_to_write(place) as sink:
        sink.write(content)


def flush_file(place: str) -> None:
    """Make the content of a file of this machine durable; elsewhere it is."""
    if not is_url(place):
        with Path(place).open("rb") as file:
            os.fsync(file.fileno())


def remove_file(place: str) -> None:
    """Delete a file, if it exists."""
    if not is_url(place):
        Path(place).unlink(missing_ok=True)
        return
    with reporting_failures("delete", place), suppress(FileNotFoundError):
        files, path = _connect(place)
        files.delete_file(path)


def list_files(folder: str) -> list[StoredFile]:
    """Return the files below a folder on another file system; none if it does not exist."""
    with reporting_failures("list", folder):
        files, path = _connect(folder)
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = [each for each in files.get_file_info(selector) if each.type == fs.FileType.File]
        cut = len(path.rstrip("/")) + 1
        return [
            StoredFile(each.path[cut:], (each.mtime_ns or 0) / 1e9)
            for each in found
            if each.path[cut:]
        ]


def find_missing_bucket(url: str) -> ShoalError | None:
    """Return the error for a URL whose bucket does not exist; None if it does, or is not shown."""
    if not url.startswith(S3_SCHEMES):
        return None
    with suppress(OSError, pa.ArrowException):
        if _connect(url)[0].get_file_info(bucket_of(url)).type == fs.FileType.NotFound:
            return describe_failure("open", url, OSError(NO_BUCKET))
    return None


def remove_folder(folder: str) -> None:
    """Delete a folder on another file system and all that is in it, if it exists."""
    with reporting_failures("delete", folder), suppress(FileNotFoundError):
        files, path = _connect(folder)
        files.delete_dir(path)


def move_file(source: str, target: str) -> None:
    """Move a file within a file system; a file with the new name is replaced."""
    if not is_url(source):
        Path(source).replace(target)
        return
    with reporting_failures("write to", target):
        files, path = _connect(source)
        new = _connect(target)[1]
        if not target.startswith(S3_SCHEMES):  # S3 has no folders
            files.create_dir(new.rpartition("/")[0], recursive=True)
            remove_file(target)
        files.move(path, new)


def fetch_files(folder: str, names: Iterable[str], target: Path) -> None:
    """Copy files of a folder on another file system into a folder of this machine."""

    def fetch(name: str) -> None:
        own = target / name
        own.parent.mkdir(parents=True, exist_ok=True)
        content = read_bytes(join_place(folder, name))
        own.write_bytes(content)

    map_in_threads(fetch, list(names))


def store_files(source: Path, names: Iterable[str], folder: str) -> None:
    """Copy files of a folder of this machine into one on another file system."""

    def store(name: str) -> None:
        write_bytes(join_place(folder, name), (source / name).read_bytes())

    map_in_threads(store, list(names))


def map_places(
    function: Callable[[Item], Found], items: Sequence[Item], *, is_remote: bool
) -> list[Found]:
    """Return the results in order; on another file system many files are read at once."""
    return map_in_threads(function, items) if is_remote else [function(each) for each in items]


def map_in_threads(function: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
    """Return the results in order; after a failure nothing more is begun."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(function, items))
