"""Ends the processes of a pool when the process that started them ends, even by SIGKILL."""

import multiprocessing
import multiprocessing.connection
import os

from shoal.runtime.tasks import start_thread


def end_with_parent() -> None:
    """For a pool's `initializer`: end this process when its parent ends.

    A pool stops its processes itself, but not if the parent is killed.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # Without the watch this process could outlive its parent, so it ends now.
    start_thread("end-with-parent", watch, on_failure=lambda _: os._exit(1))
