"""The command line as a whole: help, misspelt names, errors and their exit codes."""

import json
from pathlib import Path

import pytest

from shoal.cli.main import COMMANDS, GROUPS, execute, exit_code_of
from shoal.model.errors import ConfigError, LedgerError, UnreachableError, UsageError
from shoal.model.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    shown = capsys.readouterr().out
    assert not [name for name in COMMANDS if name not in shown]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([name, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)


def test_an_error_keeps_its_remedy_as_text() -> None:
    error = UsageError("no such run", remedy="list them with shoal runs list")
    assert error.message == "no such run"
    assert str(error) == "no such run; list them with shoal runs list"
    assert f"{ConfigError('x is wrong')}" == "x is wrong"


def test_a_misspelt_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clustr"]) == ExitCode.USAGE
    assert "'cluster'" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["runs", "list", "--frobnicate"]) == ExitCode.USAGE
    assert "--frobnicate" in capsys.readouterr().err


def test_an_error_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["runs", "show", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert "no runs in" in shown
    assert "what to do: " in shown


def test_quiet_still_shows_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["-q", "runs", "rm", "none", "--runs-dir", str(tmp_path)]) == ExitCode.USAGE
    assert "no run 'none'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), ExitCode.USAGE),
        (ConfigError("x"), ExitCode.INVALID_CONFIG),
        (UnreachableError("x"), ExitCode.UNREACHABLE),
        (LedgerError("x"), ExitCode.UNEXPECTED),
    ],
)
def test_each_branch_of_the_error_tree_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) == code  # type: ignore[arg-type]


def test_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    assert not [code for code in ExitCode if f"| {int(code)} |" not in page]


def test_the_doctor_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    execute(["doctor", "--output", "json"])
    checks = json.loads(capsys.readouterr().out)
    assert {"Python", "Java", "Spark", "Ports", "Disk", "Clock"} <= {c["name"] for c in checks}
    assert all(check["remedy"] for check in checks if check["state"] == "missing")
