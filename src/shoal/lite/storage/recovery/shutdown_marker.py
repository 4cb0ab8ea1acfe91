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
another name, or another folder, does not rely on what is said here. And it names those who have
had the folder since, each before it is heard of anywhere: an older copy does not name the last
process that the cluster knows, however often it is started.
"""

import json
import subprocess
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.lite.storage.recovery.last_shutdown import Ended

MARKER_NAME = "shutdown-marker.json"
FORMAT = 1
# Who is registered, and never opens its logs, is forgotten after so many other starts: the folder
# is then taken for a copy, which is safe.
_MOST_BEGUN = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShutdownMarker:
    """The file in a broker's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MARKER_NAME
        # Made up with the file: a folder that was emptied has another one.
        self.directory_id = uuid4().hex
        # The processes before us that the cluster may know.
        self.earlier: tuple[str, ...] = ()
        # The process before us, if it ended by itself.
        self.clean_incarnation: str | None = None
        self._is_running = False
        # What the file says about the last process that had its logs open; it had none.
        self._last = {"state": "running", "boot_id": "", "incarnation": ""}
        # Those who have had the folder since.
        self._begun: list[str] = []

    def begin(self, incarnation: str) -> Ended:
        """How the last process ended. To be called by who has the lock of the folder."""
        ended = self._read()
        self.earlier = (self._last["incarnation"], *self._begun)
        self._begun = [*self._begun, incarnation][-_MOST_BEGUN:]
        self._write()
        return ended

    def run(self, incarnation: str, *, vouches: bool = True) -> None:
        """To be called when all logs are open, before anything is written to them.

        Who could not open some of them does not vouch for how they were left: whatever becomes
        of this process, the next one looks through all of them.
        """
        self._is_running = True
        self._last = {
            "state": "running",
            "boot_id": current_boot_id() if vouches else "",
            "incarnation": incarnation,
        }
        self._begun = []
        self._write()

    def end_cleanly(self) -> None:
        """To be called when everything is on the disk."""
        if self._is_running:
            self._last["state"] = "ended"
            self._write()

    def _read(self) -> Ended:
        try:
            content = json.loads(self.path.read_bytes())
            self._refuse_other_format(content["format"])
            last = {name: str(content[name]) for name in self._last}
            directory_id = UUID(content["directory_id"]).hex
            # Format 1 may lack it: folders that were made before it was written.
            begun = list(map(str, content.get("begun", [])))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Ended.UNKNOWN
        self._last, self.directory_id, self._begun = last, directory_id, begun
        if last["state"] == "ended":
            self.clean_incarnation = last["incarnation"]
            return Ended.CLEANLY
        return Ended.KILLED if last["boot_id"] == current_boot_id() else Ended.UNKNOWN

    def _refuse_other_format(self, said: object) -> None:
        """To overwrite what another version wrote would make its folder look like a lost one."""
        if said != FORMAT:
            raise DamagedFile(
                f"{self.path} has format {said!r:.40}, this version of shoal knows {FORMAT}",
                remedy="start the broker with the version of shoal that wrote it",
            )

    def _write(self) -> None:
        content = {
            "format": FORMAT,
            **self._last,
            "directory_id": self.directory_id,
            "begun": self._begun,
        }
        replace_file(self.path, json.dumps(content).encode())


@cache
def current_boot_id() -> str:
    """Names the time since the machine was last started."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return answer.stdout.strip()
