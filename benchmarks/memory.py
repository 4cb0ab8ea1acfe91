"""Peak memory of process trees as PSS, in which a page that several processes share counts once."""

import os
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

SAMPLE_EVERY_S: Final = 0.2
_PSS: Final = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def pss_bytes(pids: Iterable[int]) -> int:
    """The PSS of these processes and of all that descend from them."""
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found |= {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    total = 0
    for pid in found:
        with suppress(OSError):
            if match := _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes()):
                total += int(match[1]) * 1024
    return total


class PeakPss:
    """Samples the PSS of process trees until it is left; `peak_bytes` is the highest sum."""

    def __init__(self, *pids: int) -> None:
        self.peak_bytes = 0
        self._pids = pids or (os.getpid(),)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            began_s = time.monotonic()
            self.peak_bytes = max(self.peak_bytes, pss_bytes(self._pids))
            # A sample of a large process takes long: at most a fiftieth of the time is spent on it.
            if self._ended.wait(max(SAMPLE_EVERY_S, 49 * (time.monotonic() - began_s))):
                return
