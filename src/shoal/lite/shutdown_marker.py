"""How the process before us ended, read from a file that it left.

A broker that begins to write data says first that it runs, and on which boot of the machine. One
that ends by itself, with everything on the disk, says that. What is found at the next start:

    ended by itself                 the logs can be trusted as they are
    runs, on this very boot         it was killed; what it wrote is in the page cache or on the
                                    disk, only the batch it was writing may be torn
    runs, on another boot           the machine went down: what was not flushed may be gone

Until its logs are open a process says nothing, so that what it found is found again by the next
one: who is killed while it looks through its logs after a power loss has not looked through them.

The file names the process too, and the folder: a controller that knows the last process by
another name, or another folder, does not rely on what is said here.
"""

import json
import subprocess
import uuid
from functools import cache
from pathlib import Path

from shoal.lite.log.ended import Ended
from shoal.lite.log.files import replace_file

MARKER_NAME = "shutdown-marker.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShutdownMarker:
    """The file in a broker's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MARKER_NAME
        # Made up with the file: a folder that was emptied has another one.
        self.directory_id = uuid.uuid4().hex
        # The process before us, if it ended by itself.
        self.clean_incarnation: str | None = None
        self._incarnation = ""
        self._is_running = False

    def begin(self) -> Ended:
        """How the last process ended."""
        ended = self._read()
        if ended is Ended.UNKNOWN:
            # For the id of the folder. Of no boot: the next one finds the same as this one.
            self._write("running", boot_id="")
        return ended

    def run(self, incarnation: str) -> None:
        """To be called when all logs are open, before anything is written to them."""
        self._incarnation = incarnation
        self._is_running = True
        self._write("running", boot_id=current_boot_id())

    def end_cleanly(self) -> None:
        """To be called when everything is on the disk."""
        if self._is_running:
            self._write("ended", boot_id=current_boot_id())

    def _read(self) -> Ended:
        try:
            content = json.loads(self._path.read_bytes())
            state, boot_id = content["state"], content["boot_id"]
            incarnation, directory_id = content["incarnation"], content["directory_id"]
        except FileNotFoundError:
            return Ended.UNKNOWN
        except (ValueError, KeyError, TypeError):
            return Ended.UNKNOWN
        self.directory_id = directory_id
        if state == "ended":
            self.clean_incarnation = incarnation
            return Ended.CLEANLY
        return Ended.KILLED if boot_id == current_boot_id() else Ended.UNKNOWN

    def _write(self, state: str, *, boot_id: str) -> None:
        content = {
            "format": 1,
            "state": state,
            "boot_id": boot_id,
            "incarnation": self._incarnation,
            "directory_id": self.directory_id,
        }
        replace_file(self._path, json.dumps(content).encode())


@cache
def current_boot_id() -> str:
    """Names the time since the machine was last started."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return answer.stdout.strip()
