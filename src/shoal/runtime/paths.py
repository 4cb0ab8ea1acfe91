"""The folders that we keep in a user's home, by the XDG rules, on macOS too.

The cache may be deleted at any time and is made again when needed; the state folder
holds what must be found from another terminal while a cluster runs.
"""

import os
from pathlib import Path

from shoal.model.errors import SystemFailure


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shoal`, or `~/.cache/shoal`; not necessarily there yet."""
    return _xdg_folder("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """`$XDG_STATE_HOME/shoal`, or `~/.local/state/shoal`; not necessarily there yet."""
    return _xdg_folder("XDG_STATE_HOME", ".local/state")


def made(folder: Path, *, variable: str = "XDG_CACHE_HOME") -> Path:
    """`folder`, made if it was missing; `variable` is named to the user if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemFailure(
            f"the folder {folder} cannot be made: {error.strerror}",
            remedy=f"set {variable} to a folder that you may write to",
        ) from error
    return folder


def _xdg_folder(variable: str, default: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    # The XDG rules say that a relative path is invalid and must be ignored.
    return (named if named.is_absolute() else Path.home() / default) / "shoal"
