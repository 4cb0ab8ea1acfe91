"""The lock of a node's folder: one process at a time, and the kernel lets go when it ends."""

import fcntl
import os
from pathlib import Path

from shoal.model.errors import SystemFailure

LOCK_NAME = ".lock"


def lock_folder(folder: Path) -> int:
    """Take the folder, made if it is not there; held while the descriptor is open."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SystemFailure(
            f"another process uses {folder}",
            remedy="end it first, or name another folder",
        ) from None
    return descriptor
