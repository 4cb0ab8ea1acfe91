"""`shoal audit --history`: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import execute
from shoal.model.exit_codes import ExitCode
from support.audit.history_files import DRAINED, receive, run, send


def save(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {
        "good": save(tmp_path / "good.jsonl", run(), send(0), *receive(0), DRAINED),
        "bad": save(tmp_path / "bad.jsonl", send(0), send(1), *receive(0), DRAINED),
        "open": save(tmp_path / "open.jsonl", send(0), send(1), *receive(0)),
        "torn": save(tmp_path / "torn.jsonl", send(0), {"kind": "send"}),
        "empty": save(tmp_path / "empty.jsonl"),
    }


def test_json_is_an_array_in_the_order_given(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [files[name] for name in ("open", "good", "bad")]
    code = execute(
        ["audit", *(word for path in given for word in ("--history", path)), "-o", "json"]
    )
    assert code == ExitCode.VIOLATED
    results = json.loads(capsys.readouterr().out)
    assert [line["history"] for line in results] == given
    assert [line["verdict"] for line in results] == ["inconclusive", "proven", "violated"]
    assert results[0]["findings"] == {"pending": {"count": 1}}


@pytest.mark.parametrize(
    ("names", "options", "code"),
    [
        (["good"], [], ExitCode.PROVEN),
        (["good", "open"], [], ExitCode.INCONCLUSIVE),
        (["empty"], [], ExitCode.INCONCLUSIVE),
        (["good", "bad", "open"], [], ExitCode.VIOLATED),
        (["good", "torn"], [], ExitCode.USAGE),
        ([], [], ExitCode.USAGE),
        (["good"], ["--threshold", "latency_ms_p99<1"], ExitCode.THRESHOLDS_FAILED),
        (["open"], ["--threshold", "pending<1"], ExitCode.THRESHOLDS_FAILED),
        (["bad"], ["--threshold", "lost<1"], ExitCode.VIOLATED),
        (["good"], ["--threshold", "latency_ms_p99<6"], ExitCode.PROVEN),
        (["good"], ["--threshold", "latensy<6"], ExitCode.USAGE),
    ],
)
def test_exit_codes(
    names: list[str], options: list[str], code: ExitCode, files: dict[str, str]
) -> None:
    arguments = [word for name in names for word in ("--history", files[name])]
    assert execute(["audit", *arguments, *options]) == code


def test_a_malformed_line_prints_no_verdict(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    execute(["audit", "--history", files["good"], "--history", files["torn"], "-o", "json"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "torn.jsonl: line 2 is a `send` line without `producer`" in printed.err


def test_an_empty_history_says_that_it_proves_nothing(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    execute(["audit", "--history", files["empty"]])
    assert "nothing is proven" in capsys.readouterr().out


def test_the_self_test_as_a_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "shoal", "audit", "--self-test", "--plantings", "30"]
    done = subprocess.run(
        [*command, "--report", str(page)], capture_output=True, text=True, check=True, timeout=100
    )
    assert "passed: 30 histories" in done.stdout
    assert "recall 100 %" in page.read_text()


def test_the_number_of_unknown_attempts_stands_beside_yield(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [run(), send(0), send(1, "unknown"), send(2, "unknown"), *receive(0), DRAINED]
    execute(["audit", "--history", save(tmp_path / "unknown.jsonl", *lines)])
    [shown] = [line for line in capsys.readouterr().out.splitlines() if "yield" in line]
    assert shown.endswith("1 acknowledged of 3 attempts, 2 unknown")
