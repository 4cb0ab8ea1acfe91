"""Names that look like markup or control a terminal: every command prints them as they are."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

import shoal.cli
from cli.test_compare import make_judged_run
from cli.test_runs import make_run
from shoal.cli.cluster import cluster as cluster_command
from shoal.cli.main import execute
from shoal.cli.run import _show_groups
from shoal.cli.shared import console, verdict
from shoal.model.errors import UsageError
from shoal.model.findings import Verdict
from shoal.model.result import FindingResult, GroupResult, Metrics, Result
from shoal.systems.remote import RemoteNode

# A name, and how it is printed.
NAMES = {
    "closing tag": ("a[/red]b", "a[/red]b"),
    "style": ("a[bold]b", "a[bold]b"),
    "link": ("[link=http://evil]a[/link]", "[link=http://evil]a[/link]"),
    "backslash": ("a\\[b]", "a\\[b]"),
    "emoji code": ("a:warning:b", "a:warning:b"),
    "colour": ("a\x1b[31mb", "a\\x1b[31mb"),
    "title of the window": ("a\x1b]0;t\x07b", "a\\x1b]0;t\\x07b"),
    "C1 control": ("a\x9b31mb", "a\\x9b31mb"),
    "line feed": ("a\nPROVEN: b", "a\\nPROVEN: b"),
    "carriage return": ("a\rPROVEN", "a\\rPROVEN"),
    "other line ends": ("a\u2028b\u0085c", "a\\u2028b\\x85c"),
    "direction": ("a\u202etxt.exe\u2066b", "a\\u202etxt.exe\\u2066b"),
    "not a control": ("Größe 数量 ⚠", "Größe 数量 ⚠"),
}
Show = Callable[[str, Path], None]


def _result(name: str) -> Result:
    found = GroupResult(
        Verdict.VIOLATED,
        f"Of {name} one is lost.",
        metrics=Metrics(),
        findings={name: FindingResult(1, 1, {"x": name})},
    )
    return Result(run=name, worst_group=name, groups={name: found, "b": found}, promises={})


def _runs(*command: str) -> Show:
    def show(name: str, folder: Path) -> None:
        run = make_run(folder, "one", run=name)
        judged = {"format": 1, "verdict": "proven", "sentence": f"{name} is there.", "missed": []}
        (run / "result.json").write_text(json.dumps(judged))
        assert execute([*command, "--runs-dir", str(folder)]) == 0

    return show


def _compare(name: str, folder: Path) -> None:
    for each, kind in (("one", name), ("two", "shoal")):
        make_judged_run(folder / each, kind, 1000)
    assert execute(["compare", "one", "two", "--runs-dir", str(folder)]) == 0


def _outline(name: str, folder: Path) -> None:
    file = folder / "file.toml"
    file.write_text(f"description = {json.dumps(name)}\n[producer]\nmessages = 10\n")
    assert execute(["run", str(file), "--dry-run"]) == 0


def _table(name: str, folder: Path) -> None:
    del folder
    table = console.SafeTable(name, "b")
    table.add_row(name, Text("b", "bold"))
    console.print_table(table)


def _health(name: str, folder: Path) -> None:
    del folder
    offline, failures = {name: name}, {name: 2}
    node = RemoteNode(1, "h", 1, 1, "running", failures=failures, offline=offline)
    cluster_command._print_health(node)


WAYS: dict[str, Show] = {
    "runs list": _runs("runs", "list"),
    "runs show": _runs("runs", "show"),
    "compare": _compare,
    "run --dry-run": _outline,
    "verdict": lambda name, folder: verdict.show_verdict(_result(name), folder / "run"),
    "groups": lambda name, folder: _show_groups(_result(name)),
    "table": _table,
    "health of nodes": _health,
    "message": lambda name, folder: console.say(f"\nabout {name}", "bold"),
    "remedy": lambda name, folder: console.show_error(
        UsageError("x", remedy=console.one_line(name))
    ),
    "usage": lambda name, folder: _refuse(name),
    "log": lambda name, folder: _log(name),
}


def _refuse(name: str) -> None:
    assert execute([name]) == 2


def _log(name: str) -> None:
    record = logging.LogRecord("n", logging.WARNING, "", 1, "%s", (name,), None)
    console.say(console.SafeFormatter().format(record))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NAMES)
def test_names_are_printed_as_they_are(
    kind: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, expected = NAMES[kind]
    WAYS[way](name, tmp_path)
    shown = "".join(capsys.readouterr())
    # Long lines may be wrapped, and Click quotes what it prints.
    unwrapped = re.sub(r"\s+", "", shown).replace("\\\\", "\\")
    assert re.sub(r"\s+", "", expected) in unwrapped
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\u2066]", shown)
    assert not [line for line in shown.splitlines() if line.startswith("PROVEN: b")]


@pytest.mark.parametrize("kind", NAMES)
def test_a_terminal_gets_no_control_sequence_of_a_name(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Styles are there, and nothing of the name is among them."""
    name, expected = NAMES[kind]
    monkeypatch.setattr(console.out, "_force_terminal", True)
    console.print_line((name, "bold"), " is ", (name, ""))
    shown = capsys.readouterr().out
    assert re.sub("\x1b\\[[01]m", "", shown) == f"{expected} is {expected}\n"


def test_commands_print_by_the_console_module_only() -> None:
    """It is the one place where text becomes safe."""
    folder = Path(next(iter(shoal.cli.__path__)))
    forbidden = re.compile(
        r"from rich\.(console import .*\bConsole\b|markup|table)|\bprint\(\"|\[/\]"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in folder.rglob("*.py")
        if path.name != "console.py"
        for line in path.read_text().splitlines()
        if forbidden.search(line)
    ]
    assert not found
