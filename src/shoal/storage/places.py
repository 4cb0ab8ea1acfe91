"""Names of files: a path of this machine, or a URL of a file system of Arrow.

A place is a text. With `://` in it, it is a URL: `s3a://BUCKET/PATH`, `s3://`, `hdfs://`. `file://`
is another way to write a path, and becomes one where a user's text is read (`read_place`).
"""

from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal.model.errors import UsageError

S3_SCHEMES: Final = ("s3", "s3a")
SCHEMES: Final = ("file", *S3_SCHEMES, "hdfs")
# Settings of S3 that are no secrets; executors need them as much as the driver.
S3_SETTINGS: Final = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("AWS_REGION", "AWS_DEFAULT_REGION"),
)
_MARK: Final = "://"


def is_url(place: str) -> bool:
    return _MARK in place


def read_place(text: str) -> str:
    """Return the place that a user has named; `UsageError` if its file system is not known."""
    if not is_url(text):
        return text
    scheme, _, rest = text.partition(_MARK)
    if scheme not in SCHEMES:
        raise UsageError(
            f"{text} is on a file system that is not known",
            remedy=f"use a folder, or one of {', '.join(f'{name}://' for name in SCHEMES)}",
        )
    if scheme == "file":
        return _read_file_url(text)
    if not rest.partition("/")[0 if scheme in S3_SCHEMES else 2].strip("/"):
        raise UsageError(
            f"{text} names no {'bucket' if scheme in S3_SCHEMES else 'folder'}",
            remedy="give the whole address, such as s3a://BUCKET/RUN",
        )
    return f"{scheme}{_MARK}{rest.rstrip('/')}"


def _read_file_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(
            f"{text} is not a file on this machine", remedy="write three slashes: file:///FOLDER"
        )
    return unquote(parts.path).rstrip("/") or "/"


def join_place(folder: str, *names: str) -> str:
    """Return the place of a file in a folder."""
    if is_url(folder):
        return "/".join((folder.rstrip("/"), *names))
    return str(PurePosixPath(folder, *names))


def bucket_of(url: str) -> str:
    """Return the bucket of a URL of S3; of another file system its host."""
    return url.partition(_MARK)[2].partition("/")[0]
