"""The memory of a process tree, as benchmarks measure it."""

import os
import subprocess
import sys
import time

from benchmarks.memory import PeakPss, pss_bytes

_CHILD = "import time; held = bytearray(80_000_000); print('up', flush=True); time.sleep(300)"


def test_memory_is_that_of_the_whole_tree_at_its_peak() -> None:
    before_bytes = pss_bytes([os.getpid()])
    with PeakPss() as memory:
        child = subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            child.stdout.readline()
            with_child_bytes = pss_bytes([os.getpid()])
            own_bytes = pss_bytes([child.pid])
            deadline_s = time.monotonic() + 120  # samples are rare on a busy machine
            while memory.peak_bytes < with_child_bytes * 0.95 and time.monotonic() < deadline_s:
                time.sleep(0.05)
        finally:
            child.kill()
            child.communicate()
    assert own_bytes >= 80_000_000
    assert with_child_bytes >= before_bytes * 0.5 + 80_000_000
    assert memory.peak_bytes >= 0.95 * with_child_bytes
    assert pss_bytes([child.pid]) == 0
