"""Processes of a pool end when their parent is killed."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_S = 60.0
POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from shoal.runtime.pools import end_with_parent

if __name__ == "__main__":
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    with suppress(psutil.NoSuchProcess):  # gone between two looks
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
