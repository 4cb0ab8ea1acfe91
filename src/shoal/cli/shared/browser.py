"""Opens files and addresses in the user's browser.

Rule: an address with a token never becomes an argument of a process, which every user of this
machine could read. The browser gets the path of a file that only this user may read, and which
leads it to the address; the file is deleted when the command ends.
"""

import atexit
import html
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import rich_click as click

from shoal.cli.shared import console
from shoal.model.errors import SystemFailure
from shoal.runtime.paths import make_folder, state_dir

_REDIRECT: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>Shoal</title>
<a href="{address}">Open the page</a>
"""

open_option = click.option(
    "--open", "is_opening", is_flag=True, help="Open the report in the browser."
)


def has_desktop() -> bool:
    """Whether a browser of this user can show something."""
    if sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_file(path: Path) -> None:
    """Show a file in the browser; says where it is if there is no desktop."""
    if has_desktop() and click.launch(path.absolute().as_uri()) == 0:
        return
    console.say(f"no browser was found; open {path.absolute()} in one")


def open_address(address: str) -> bool:
    """Lead the browser to an address with a token; False if that is not possible."""
    if not has_desktop():
        return False
    try:
        file = write_redirect(address)
    except (OSError, SystemFailure):
        return False
    return click.launch(file.as_uri()) == 0


def write_redirect(address: str) -> Path:
    """A page that leads to the address; only this user may read it, until the command ends."""
    folder = state_dir() / "redirects"
    make_folder(folder, variable="XDG_STATE_HOME")
    number, name = tempfile.mkstemp(prefix="open-", suffix=".html", dir=folder)  # mode 600
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(_REDIRECT.format(address=html.escape(address)))
    atexit.register(Path(name).unlink, missing_ok=True)
    return Path(name)
