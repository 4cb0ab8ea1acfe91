"""An audit on Spark of a run on another file system, as a program of its own.

`python -m support.storage.remote_audit MASTER URL TABLE…` prints a JSON object: the exit code, the
segments that this process opened, those of which it read rows, and the files that it had.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import shoal.audit.read.read as reading
from shoal.audit.read import folder as folders_module
from shoal.audit.read import remote
from shoal.cli.audit import audit as audit_command
from shoal.storage import files

_WATCHED: Final = ("open_to_read", "_load_together", "TemporaryDirectory")


def main(master: str, url: str) -> None:
    opened: list[str] = []
    read: list[str] = []
    folders: list[Path] = []
    real_load = reading._load_together

    def open_to_read(place: str) -> Any:
        opened.append(place)
        return files.open_to_read(place)

    def load_together(pieces: Any, columns: Any) -> Any:
        read.append(pieces[0].path)
        return real_load(pieces, columns)

    class WatchedFolder(TemporaryDirectory[str]):
        """Lists what is in the folder at its end."""

        def cleanup(self) -> None:
            folders.extend(path for path in Path(self.name).rglob("*") if path.is_file())
            super().cleanup()

        def __exit__(self, *_: object) -> None:
            self.cleanup()

    watched = [(folders_module, open_to_read), (reading, load_together), (remote, WatchedFolder)]
    for name, (module, watching) in zip(_WATCHED, watched, strict=True):
        setattr(module, name, watching)
    code = audit_command([url, "--master", master], standalone_mode=False)
    found = {"code": int(code), "opened": opened, "read": read}
    names = [path.name for path in folders]
    sys.stdout.write(json.dumps({**found, "files": names}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
