"""Tests that share something dear run in one process of a parallel run, and long ones first."""

import subprocess
import sys
from pathlib import Path

from support.ordering import LONG_GROUPS, order_places

ROOT = Path(__file__).parents[2]
FILES = ("tests/wire/test_crc.py", "tests/net/test_messages.py")


def test_the_tests_of_a_file_run_in_one_process() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", *FILES]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    passed = [line.split() for line in done.stdout.splitlines() if " PASSED " in line]
    processes = {file: {line[0] for line in passed if file in " ".join(line)} for file in FILES}
    assert {file: len(names) for file, names in processes.items()} == dict.fromkeys(FILES, 1)


def test_long_groups_come_first_and_then_those_of_many_tests() -> None:
    first, second = LONG_GROUPS[:2]
    groups = ["few.py", second, "many.py", "few.py", first, "many.py", "many.py", second]
    ordered = [groups[place] for place in order_places(groups)]
    assert ordered == [first, second, second, *["many.py"] * 3, *["few.py"] * 2]
    assert order_places(["a.py"] * 3) == [0, 1, 2]


def test_every_long_group_exists() -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(set(LONG_GROUPS) - files - {"spark", "apache"}) == []
    assert len(set(LONG_GROUPS)) == len(LONG_GROUPS)
