"""How the previous process ended, read from a file that it left.

Before a broker writes data, it stores that it runs, and on which boot of the machine. A broker that
shuts down cleanly, with everything on disk, stores that. What the next start finds:

    shut down cleanly               the logs can be trusted as they are
    running, on this boot           it was killed; what it wrote is in the page cache or on disk,
                                    only the batch it was writing may be torn
    running, on another boot        the machine went down: what was not synced may be lost

Until its logs are open, a process stores nothing of this, so that the next process finds the same:
a process that is killed while it checks its logs after a power loss has not checked them.

The file also has the incarnation of the process and the id of the folder: a controller that knows
the last process by another incarnation, or another folder, does not rely on this file. And it lists
the processes that have used the folder since, each before it registers: an older copy of the folder
does not list the last process that the cluster knows, however often it is started.
"""

import json
import subprocess
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.lite.storage.recovery.last_shutdown import LastShutdown

MARKER_NAME = "shutdown-marker.json"
FORMAT = 1
# A process that registered but never opened its logs is dropped after this many other starts: the
# folder is then treated as a copy, which is safe.
_MOST_BEGUN = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShutdownMarker:
    """The marker file in a broker's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MARKER_NAME
        # Generated with the file: a folder that was emptied gets another id.
        self.directory_id = uuid4().hex
        # The earlier processes that the cluster may know.
        self.earlier: tuple[str, ...] = ()
        # The previous process, if it shut down cleanly.
        self.clean_incarnation: str | None = None
        self._is_running = False
        # The entry of the last process that opened its logs; this default means none.
        self._last = {"state": "running", "boot_id": "", "incarnation": ""}
        # The processes that used the folder since.
        self._begun: list[str] = []

    def begin(self, incarnation: str) -> LastShutdown:
        """How the last process ended. Call it with the lock of the folder."""
        ended = self._read()
        self.earlier = (self._last["incarnation"], *self._begun)
        self._begun = [*self._begun, incarnation][-_MOST_BEGUN:]
        self._write()
        return ended

    def run(self, incarnation: str, *, has_all_logs: bool = True) -> None:
        """Store that this process runs. Call it when the logs are open, before the first write.

        Without `has_all_logs` some of them could not be opened, so how they were left is not
        known: the next process checks all of them, however this one ends.
        """
        self._is_running = True
        self._last = {
            "state": "running",
            "boot_id": current_boot_id() if has_all_logs else "",
            "incarnation": incarnation,
        }
        self._begun = []
        self._write()

    def end_cleanly(self) -> None:
        """Store a clean shutdown. Call it when everything is on disk."""
        if self._is_running:
            self._last["state"] = "ended"
            self._write()

    def _read(self) -> LastShutdown:
        try:
            content = json.loads(self.path.read_bytes())
            self._refuse_other_format(content["format"])
            last = {name: str(content[name]) for name in self._last}
            directory_id = UUID(content["directory_id"]).hex
            # Optional in format 1: older folders do not have it.
            begun = list(map(str, content.get("begun", [])))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return LastShutdown.UNKNOWN
        self._last, self.directory_id, self._begun = last, directory_id, begun
        if last["state"] == "ended":
            self.clean_incarnation = last["incarnation"]
            return LastShutdown.CLEANLY
        return LastShutdown.KILLED if last["boot_id"] == current_boot_id() else LastShutdown.UNKNOWN

    def _refuse_other_format(self, said: object) -> None:
        """Overwriting the file of another version would make its folder look like a lost one."""
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
    """The id of the current boot of the machine."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return answer.stdout.strip()
