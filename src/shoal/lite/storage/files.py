"""Writes files so that a crash leaves either the old content or the new.

Also the two small text formats in which Apache Kafka stores checkpoints.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from shoal.lite.storage.disk import Data, sync, write_whole
from shoal.model.errors import ShoalError


class DamagedFile(ShoalError):
    """A checkpoint, snapshot or marker file has invalid content."""


def write_file(path: Path, content: Data) -> None:
    """Replace the content of a file in place. A crash may leave a part of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_whole(descriptor, content, 0)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file atomically: readers, and a killed writer, see the old or the new content.

    With `durable` this also holds after a power loss.
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
    """Sync a folder, so that the names in it survive a power loss."""
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
    """The rows of a checkpoint; `DamagedFile`, which names `source`, if it is invalid."""
    try:
        version, count, *lines = content.decode().split("\n")
        rows = [tuple(map(int, line.split(" "))) for line in lines if line]
        pairs = [(first, second) for first, second in rows]
        announced = (int(version), int(count))
    except ValueError as error:
        raise DamagedFile(f"{source} is not a checkpoint: {error}") from error
    if announced != (0, len(pairs)):
        raise DamagedFile(f"{source} is truncated, or a checkpoint of another version")
    return pairs


def write_offset(path: Path, offset: int, *, durable: bool) -> None:
    """Write a checkpoint of one offset."""
    replace_file(path, encode_checkpoint([(0, offset)]), durable=durable)


def read_offset(path: Path) -> int:
    """The offset in a checkpoint that is only a hint: 0 if it is missing or damaged."""
    try:
        [(_, offset)] = decode_checkpoint(path.read_bytes(), source=str(path))
    except (FileNotFoundError, DamagedFile, ValueError):
        return 0
    return offset
