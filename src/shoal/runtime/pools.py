"""Processes of a pool end with the process that started them, however that ends."""

import multiprocessing
import multiprocessing.connection
import os
import threading


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

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
