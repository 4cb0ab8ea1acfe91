"""JSON files of a run's folder."""

import json
from pathlib import Path
from typing import Any

from shoal.model.errors import LedgerError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise LedgerError(f"{path} does not contain a JSON object")
    return content
