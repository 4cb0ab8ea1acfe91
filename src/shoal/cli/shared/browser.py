"""Opens files and addresses in the user's browser."""

import os
import sys
from pathlib import Path

import rich_click as click

from shoal.cli.shared import console

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
