"""Presets: experiments that are part of the package and run without changes."""

import difflib
from pathlib import Path
from typing import Final

from shoal.model.errors import UsageError
from shoal.model.tables import read_toml

_FOLDER: Final = Path(__file__).with_name("preset_files")


def presets() -> dict[str, str]:
    """Every preset with its description."""
    files = sorted(_FOLDER.glob("*.toml"))
    return {file.stem: read_toml(file).text("description", "") for file in files}


def find(name: str) -> Path:
    """The file of that name, or the file of the preset of that name."""
    if Path(name).is_file():
        return Path(name)
    preset = _FOLDER / f"{name}.toml"
    if "/" not in name and preset.is_file():
        return preset
    known = [file.stem for file in sorted(_FOLDER.glob("*.toml"))]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise UsageError(
        f"no file and no preset is named {name}",
        remedy=f"did you mean {near[0]}?" if near else f"the presets are {', '.join(known)}",
    )
