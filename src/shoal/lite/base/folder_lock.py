"""The lock of a node's folder: held by one process, released by the kernel when it ends."""

import fcntl
import os
from pathlib import Path

from shoal.model.errors import SystemFailure

LOCK_NAME = ".lock"


def lock_folder(folder: Path) -> int:
    """Lock the folder, created if missing; the lock is held while the descriptor is open."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SystemFailure(
            f"another process uses {folder}",
            remedy="stop it first, or choose another folder",
        ) from None
    return descriptor
