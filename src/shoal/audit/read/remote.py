"""Run folders on other file systems: `file://`, `s3a://`, `s3://`, `hdfs://`, by Arrow.

A folder is fetched into a temporary one, judged there, and the results are stored beside it. Only
the segments of the commit log are fetched. S3 is reached as its own tools reach it: credentials,
`AWS_REGION` and `AWS_ENDPOINT_URL` from the environment.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from shoal.model.errors import SystemFailure, UsageError
from shoal.model.ledger import TABLES
from shoal.model.run_folder import COMMITS_FILE, RUN_FILE, RunFolder

SCHEMES: Final = ("file", "s3", "s3a", "hdfs")
_S3: Final = ("s3", "s3a")
_AT_ONCE: Final = 16  # files that are copied at once
RESULTS: Final = ("result.json", "page.json", "report.html", "junit.xml", "summary.md")
TABLES_FOLDER: Final = "tables"


def is_remote(name: str) -> bool:
    """Whether a name is a URL and not a run's id or folder."""
    return "://" in name


@dataclass(frozen=True)
class RemoteFolder:
    """A folder on a file system of Arrow."""

    url: str
    files: Any  # pyarrow.fs.FileSystem
    path: str

    @classmethod
    def open(cls, url: str) -> "RemoteFolder":
        scheme, _, rest = url.rstrip("/").partition("://")
        if scheme not in SCHEMES:
            raise UsageError(
                f"{url} is on a file system that is not known",
                remedy=f"use a folder, or one of {', '.join(f'{name}://' for name in SCHEMES)}",
            )
        try:
            if scheme in _S3:
                return cls(url.rstrip("/"), _connect_s3(), rest)
            return cls(url.rstrip("/"), *fs.FileSystem.from_uri(url.rstrip("/")))
        except (OSError, pa.ArrowException) as error:
            raise _failure("open", url, error) from error

    def fetch(self, names: Iterable[str], folder: Path) -> None:
        """Copy these files into a folder of this machine."""

        def copy(name: str) -> None:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._copy(f"{self.path}/{name}", str(target), self.files, fs.LocalFileSystem())

        self._run(copy, names, "read")

    def store(self, folder: Path, names: Iterable[str]) -> None:
        """Copy these files of a folder of this machine here."""

        def copy(name: str) -> None:
            target = f"{self.path}/{name}"
            self.files.create_dir(str(PurePosixPath(target).parent), recursive=True)
            self._copy(str(folder / name), target, fs.LocalFileSystem(), self.files)

        self._run(copy, names, "write to")

    def remove_folder(self, name: str) -> None:
        try:
            if self.files.get_file_info(f"{self.path}/{name}").type == fs.FileType.Directory:
                self.files.delete_dir(f"{self.path}/{name}")
        except (OSError, pa.ArrowException) as error:
            raise _failure("write to", self.url, error) from error

    @staticmethod
    def _copy(source: str, target: str, source_files: Any, target_files: Any) -> None:
        fs.copy_files(
            source, target, source_filesystem=source_files, destination_filesystem=target_files
        )

    def _run(self, copy: Any, names: Iterable[str], verb: str) -> None:
        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                for _ in threads.map(copy, names):
                    pass
        except (OSError, pa.ArrowException) as error:
            raise _failure(verb, self.url, error) from error


def _connect_s3() -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return fs.S3FileSystem()
    parts = urlsplit(endpoint)
    return fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme or "https")


def _failure(verb: str, url: str, error: Exception) -> SystemFailure:
    return SystemFailure(
        f"cannot {verb} {url}: {error!s:.300}",
        remedy="check the address, the credentials and AWS_ENDPOINT_URL; or copy the run's folder",
    )


@contextmanager
def fetch_run(url: str) -> Iterator[Path]:
    """Fetch the ledgers of a run into a temporary folder."""
    remote = RemoteFolder.open(url)
    with TemporaryDirectory(prefix="shoal-run-") as name:
        folder = Path(name)
        remote.fetch([RUN_FILE, COMMITS_FILE], folder)
        run = RunFolder.open(folder)
        segments = [segment for table in TABLES for segment in run.segments(table)]
        remote.fetch([str(each.path.relative_to(folder)) for each in segments], folder)
        yield folder


def store_results(folder: Path, url: str) -> None:
    """Store the results of an audit, which are in a folder of this machine, beside the ledgers."""
    remote = RemoteFolder.open(url)
    remote.remove_folder(TABLES_FOLDER)
    tables = [path for path in (folder / TABLES_FOLDER).rglob("*") if path.is_file()]
    names = [str(path.relative_to(folder)) for path in tables]
    remote.store(folder, [*names, *(name for name in RESULTS if (folder / name).is_file())])
