"""Parquet files by path or by URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.parquet as pq

from shoal.model.commit_chain import REMEDY
from shoal.model.errors import LedgerError, ShoalError
from shoal.storage.failures import describe_failure, is_understood
from shoal.storage.files import open_to_read
from shoal.storage.places import is_url


@contextmanager
def open_parquet(place: str) -> Iterator[Any]:
    """Open a file, whose pages are verified when they are read."""
    with open_to_read(place) as source, parse_parquet(source, place) as file:
        yield file


def parse_parquet(source: Any, place: str) -> Any:
    """Return the Parquet file in an open file; the footer is read now.

    Of a URL the columns of a row group are fetched at once, in as few requests as make sense.
    """
    return pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=is_url(place))


def describe_unreadable(
    place: str, error: Exception, as_what: str = "", remedy: str | None = None
) -> ShoalError:
    """Return the error for a file that cannot be opened, read or understood."""
    if is_url(place) and is_understood(error):
        return describe_failure("read", place, error)
    return LedgerError(f"{place} cannot be read{as_what}: {error!s:.300}", remedy=remedy)


def describe_unreadable_segment(place: str, error: Exception) -> ShoalError:
    """Return the error for a segment that a commit log names."""
    return describe_unreadable(place, error, " as a segment", REMEDY)
