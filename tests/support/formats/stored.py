"""Folders that an earlier version of shoal wrote, put where a test can use them.

`tests/formats/stored/README.md` says what is in them and how they were written.
"""

import json
from pathlib import Path
from zipfile import ZipFile

from shoal.lite.storage.recovery.shutdown_marker import MARKER_NAME, current_boot_id
from shoal.wire.batch import CHECKED_START, iter_batches
from shoal.wire.records.crc import crc32c

FORMATS = Path(__file__).parents[2] / "formats"
STORED = FORMATS / "stored"


def unpack(name: str, folder: Path) -> Path:
    """The content of a stored folder, in `folder`, which is made."""
    with ZipFile(STORED / f"{name}.zip") as stored:
        stored.extractall(folder)
    return folder


def settle_here(folder: Path) -> Path:
    """Let the folder of a cluster be one of this machine, and this boot of it.

    Its ports may be in use by now, and what was killed on another boot of the machine may have
    lost what was not flushed, which is not what these folders are about.
    """
    description = folder / "cluster.json"
    content = json.loads(description.read_text())
    for kind in ("ports", "controllers"):
        content[kind] = dict.fromkeys(content[kind], 0)
    description.write_text(json.dumps(content))
    boots = set()
    for marker in folder.glob(f"broker-*/{MARKER_NAME}"):
        stored = json.loads(marker.read_text())
        boots.add(stored["boot_id"])
        marker.write_text(json.dumps(stored | {"boot_id": current_boot_id()}))
    # The controllers remember the boot on which each broker was registered.
    for log in folder.glob("*/__cluster_metadata-0/*.log"):
        for boot in boots:
            log.write_bytes(_replace_in_batches(log.read_bytes(), boot, current_boot_id()))
    return folder


def _replace_in_batches(log: bytes, old: str, new: str) -> bytes:
    """A log with one text in the place of another of the same length, and right checksums."""
    assert len(old) == len(new)
    data = bytearray(log)
    start = 0
    for batch in iter_batches(memoryview(log)):
        end = start + batch.size
        changed = log[start:end].replace(old.encode(), new.encode())
        data[start:end] = changed
        data[start + 17 : start + 21] = crc32c(changed[CHECKED_START:]).to_bytes(4, "big")
        start = end
    return bytes(data)
