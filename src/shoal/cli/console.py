"""How the commands speak: one console for data, one for everything else."""

import json
import sys
from typing import Any

from rich.console import Console

from shoal.model.errors import ShoalError

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A message for the person who watches, on standard error, unless they asked for quiet."""
    if not err.quiet:
        err.print(text, style=style, markup=False)


def print_json(value: Any) -> None:
    """Data for machines, on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_error(error: ShoalError) -> None:
    """An error as users see it: what happened, and what to do next."""
    err.print(f"error: {error}", style="bold red", markup=False)
    if error.remedy:
        err.print(f"  what to do: {error.remedy}", markup=False)
