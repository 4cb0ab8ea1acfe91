"""Jobs of one session, each in a thread of its own."""

from collections.abc import Callable
from threading import Thread

from pyspark import InheritableThread
from pyspark.sql import SparkSession


def start_in_thread(session: SparkSession, run: Callable[[], None]) -> Thread:
    """Run jobs in a new thread, which can set a job group of its own; `run` must not raise."""
    thread = InheritableThread(target=run, session=session)
    thread.daemon = True
    thread.start()
    return thread
