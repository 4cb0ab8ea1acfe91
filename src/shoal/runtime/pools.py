"""Processes of a pool end with the process that started them, however that ends."""

import multiprocessing
import multiprocessing.connection
import os

from shoal.runtime.tasks import start_thread


def end_with_parent() -> None:
    """For a pool's `initializer`: from now on this process ends when its parent does.

    A pool tells its processes to stop, but a parent that is killed tells nobody anything.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # Unwatched, this process could outlive its parent: rather end now.
    start_thread("end-with-parent", watch, on_failure=lambda _: os._exit(1))
