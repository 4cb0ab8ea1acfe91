"""Shoal's folders in a user's home, by the XDG rules, on macOS too.

The cache may be deleted at any time and is created again when needed; the state folder holds what
commands in another terminal need while a cluster runs.
"""

import os
from pathlib import Path

from shoal.model.errors import SystemFailure


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shoal`, or `~/.cache/shoal`; it may not exist yet."""
    return _xdg_folder("XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """`$XDG_STATE_HOME/shoal`, or `~/.local/state/shoal`; it may not exist yet."""
    return _xdg_folder("XDG_STATE_HOME", ".local/state")


def make_folder(folder: Path, *, variable: str = "XDG_CACHE_HOME") -> Path:
    """Create `folder` if it is missing and return it; an error names `variable` to the user."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemFailure(
            f"cannot create the folder {folder}: {error.strerror}",
            remedy=f"set {variable} to a folder that you may write to",
        ) from error
    return folder


def _xdg_folder(variable: str, default: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    # The XDG rules say that a relative path is invalid and must be ignored.
    return (named if named.is_absolute() else Path.home() / default) / "shoal"
