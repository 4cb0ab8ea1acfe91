"""Writing files so that a crash leaves either the old content or the new.

Also the two small text formats in which Apache Kafka keeps checkpoints.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from shoal.lite.storage.disk import Data, sync, write_whole
from shoal.model.errors import ShoalError


class DamagedFile(ShoalError):
    """A small file of ours does not say what it must."""


def write_file(path: Path, content: Data) -> None:
    """Write a file anew. A crash may leave a part of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_whole(descriptor, content, 0)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Put `content` at `path`: a reader, or a killed writer, leaves the old file or the new.

    Only if `durable` does that hold after a power loss too.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_whole(descriptor, content, 0)
        if durable:
            sync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def encode_checkpoint(rows: Iterable[tuple[int, int]]) -> bytes:
    """Apache Kafka's checkpoint: version 0, the number of rows, then the rows."""
    lines = [f"{first} {second}" for first, second in rows]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_checkpoint(content: bytes, *, source: str) -> list[tuple[int, int]]:
    """`source` is named in the error."""
    try:
        version, count, *lines = content.decode().split("\n")
        rows = [tuple(map(int, line.split(" "))) for line in lines if line]
        pairs = [(first, second) for first, second in rows]
        announced = (int(version), int(count))
    except ValueError as error:
        raise DamagedFile(f"{source} is not a checkpoint: {error}") from error
    if announced != (0, len(pairs)):
        raise DamagedFile(f"{source} is cut, or a checkpoint of another version")
    return pairs
