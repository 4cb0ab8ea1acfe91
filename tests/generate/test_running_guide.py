"""Every command of the guide *Running it* that is marked as a shell command runs as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from shoal.cli.main import execute

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "running.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert program == "shoal"
    assert execute(words) == 0
    assert list(tmp_path.iterdir())


def test_the_guide_has_commands() -> None:
    assert {shlex.split(command)[2] for command in COMMANDS} >= {
        "systemd",
        "dockerfile",
        "compose",
        "kubernetes",
    }
