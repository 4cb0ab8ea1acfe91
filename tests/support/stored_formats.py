"""Folders that an earlier version of shoal wrote, put where a test can use them.

`tests/formats/stored/README.md` says what is in them and how they were written.
"""

import json
from pathlib import Path
from zipfile import ZipFile

from shoal.lite.storage.recovery.shutdown_marker import MARKER_NAME, current_boot_id

FORMATS = Path(__file__).parents[1] / "formats"
STORED = FORMATS / "stored"


def unpack(name: str, folder: Path) -> Path:
    """The content of a stored folder, in `folder`, which is made."""
    with ZipFile(STORED / f"{name}.zip") as stored:
        stored.extractall(folder)
    return folder


def settle_here(folder: Path) -> Path:
    """Let the folder of a cluster be one of this machine, and this boot of it.

    Its ports may be somebody else's by now, and what was killed on another boot of the machine
    may have lost what was not flushed, which is not what these folders are about.
    """
    description = folder / "cluster.json"
    content = json.loads(description.read_text())
    for kind in ("ports", "controllers"):
        content[kind] = dict.fromkeys(content[kind], 0)
    description.write_text(json.dumps(content))
    for marker in folder.glob(f"broker-*/{MARKER_NAME}"):
        said = json.loads(marker.read_text())
        marker.write_text(json.dumps(said | {"boot_id": current_boot_id()}))
    return folder
