"""Tests that share something dear run in one process of a parallel run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("tests/wire/test_crc.py", "tests/net/test_messages.py")


def test_the_tests_of_a_file_run_in_one_process() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", *FILES]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    passed = [line.split() for line in done.stdout.splitlines() if " PASSED " in line]
    processes = {file: {line[0] for line in passed if file in " ".join(line)} for file in FILES}
    assert {file: len(names) for file, names in processes.items()} == dict.fromkeys(FILES, 1)
