"""The generated files: their names, their texts, and how they are written to a folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """The text of one file, and whether it is a program."""

    text: str
    is_executable: bool = False


# By the path inside the folder that the user names.
Files = Mapping[str, GeneratedFile]


def write_files(files: Files, folder: Path, *, replace: bool = False) -> list[Path]:
    """Write all files or none: without `replace`, a file that exists with another text stops it."""
    targets = {folder / name: file for name, file in files.items()}
    if not replace:
        for path, file in targets.items():
            if path.exists() and path.read_text(encoding="utf-8") != file.text:
                raise UsageError(
                    f"{path} exists and differs from what would be generated",
                    remedy="choose another folder with --out, or replace it with --force",
                )
    for path, file in targets.items():
        _write(path, file)
    return list(targets)


def _write(path: Path, file: GeneratedFile) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
        if file.is_executable:
            path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {os.strerror(error.errno or 0)}",
            remedy="choose another folder with --out",
        ) from error
