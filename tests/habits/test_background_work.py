"""Background work starts in one place, `shoal.runtime.tasks`, which lets nothing die silently."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HOME = "shoal/runtime/tasks.py"
STARTERS = {"create_task", "ensure_future", "TaskGroup", "Thread", "InheritableThread", "Timer"}
ALLOWED: dict[str, str] = {
    "shoal/mirror/command.py": "a TaskGroup, which its owner awaits and whose error it raises; "
    "and a timer that ends the process",
    "shoal/pipeline/jobs.py": "a thread of PySpark's own kind, which carries its session along; "
    "what it runs handles its errors",
    "shoal/workload/receive/fetcher.py": "a TaskGroup: its owner awaits it and raises its error",
}


def starts_of(text: str) -> Iterator[int]:
    """Lines that start a task or a thread."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            if name in STARTERS:
                yield node.lineno


def offenders() -> dict[str, list[int]]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name != HOME and (lines := list(starts_of(path.read_text(encoding="utf-8")))):
            found[name] = lines
    return found


def test_background_work_starts_in_one_place() -> None:
    assert {name: lines for name, lines in offenders().items() if name not in ALLOWED} == {}


def test_every_exception_is_needed_and_has_a_reason() -> None:
    assert set(ALLOWED) <= set(offenders())
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "self._loop.create_task(work())",
        "asyncio.ensure_future(work())",
        "asyncio.TaskGroup()",
        "threading.Thread(target=work)",
        "Thread(target=work)",
    ],
)
def test_a_planted_start_is_found(line: str) -> None:
    assert list(starts_of(f"x = 1\n{line}\n")) == [2]
