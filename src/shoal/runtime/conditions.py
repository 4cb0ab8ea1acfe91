"""The conditions under which a proof was run: a table at the end of every page in docs/proofs.

The code is named by its commit, and by the paths below which it differs from that commit.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def code_version(*paths: str) -> str:
    """The commit of this source tree, and whether anything (below `paths`) differs from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown (no git)"
    is_changed = _git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return f"commit {commit}" + (" with uncommitted changes" if is_changed else "")


def conditions(
    command: str,
    *,
    elapsed_s: float,
    code: str | None = None,
    more: Mapping[str, object] | None = None,
    packages: Iterable[str] = (),
) -> str:
    """The table. `code` is the version taken before the proof began; `more` adds rows."""
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {version(name)}" for name in packages]
    rows = {
        "date": datetime.now(UTC).date(),
        "code": code or code_version("src", "scripts", "tests/support"),
        "command": f"`{command}`",
        "time": f"{elapsed_s / 60:.1f} minutes",
        **(more or {}),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load at the end": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "versions": ", ".join(versions),
    }
    lines = ["| condition | |", "|---|---|", *(f"| {name} | {rows[name]} |" for name in rows)]
    return "\n".join(lines)


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(Path(__file__).parents[3]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
