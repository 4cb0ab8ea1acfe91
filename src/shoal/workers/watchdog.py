"""The last protection against orphans: a thread that kills a worker whose driver is gone.

A worker that loses its driver stops after 10 s, which needs a running event loop. If the loop does
not run, or sealing takes too long, this thread ends the process 13 s after the last message of the
driver. A worker that was only busy is not killed: the thread first tries to connect to the driver.
"""

import os
import socket
import threading
import time
from typing import Final

from shoal.net.control import ControlClient
from shoal.runtime.tasks import start_thread

KILL_AFTER_S: Final = 13.0
CHECK_EVERY_S: Final = 0.5
DIAL_LIMIT_S: Final = 0.5
EXIT_CODE: Final = 3


class Watchdog:
    """Watches the driver from `start` to `stop`."""

    def __init__(self, client: ControlClient, address: tuple[str, int]) -> None:
        self._client = client
        self._address = address
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # Without this thread a worker could outlive its driver.
        self._thread = start_thread(
            "watchdog", self._watch, on_failure=lambda _: os._exit(EXIT_CODE)
        )

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_EVERY_S):
            if time.monotonic() - self._client.heard_at < KILL_AFTER_S:
                continue
            if self._client.ended_by is not None or not self._driver_answers():
                os._exit(EXIT_CODE)

    def _driver_answers(self) -> bool:
        try:
            with socket.create_connection(self._address, timeout=DIAL_LIMIT_S):
                return True
        except OSError:
            return False
