"""Commands and experiment files of the guides run as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import rich_click as click

from shoal.cli.main import execute, main

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
TEN_MINUTES = (GUIDES / "ten-minutes.md").read_text(encoding="utf-8")
RUN = "shoal run first.toml"
# `make demo` is tried in tests/experiment/test_demo.py; the other prepares a shell.
NOT_OURS = {"make demo", ". .venv/bin/activate"}


def find_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands_of(guide: str) -> list[str]:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return [line for block in find_blocks(text, "sh") for line in block.splitlines()]


def experiments() -> list[tuple[str, str]]:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(GUIDES.glob("*.md"))}
    return [
        (name, block)
        for name in ("ten-minutes", "test-your-mirror")
        for block in find_blocks(texts[name], "toml")
    ]


@pytest.mark.parametrize(("guide", "block"), experiments())
def test_an_experiment_of_a_guide_could_run(
    guide: str, block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{guide}.toml"
    file.write_text(block)
    assert execute(["run", str(file), "--dry-run", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("guide", ["ten-minutes", "switch-from-mm2"])
def test_quick_commands_of_a_guide_run(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if blocks := find_blocks((GUIDES / f"{guide}.md").read_text(encoding="utf-8"), "toml"):
        (tmp_path / "first.toml").write_text(blocks[0])
    checked = [command for command in commands_of(guide) if command.endswith("--dry-run")]
    assert checked
    for command in checked:
        program, *words = shlex.split(command)
        assert (program, execute(words)) == ("shoal", 0)


def list_documented_commands() -> list[tuple[str, str]]:
    """Each line of a shell block that calls shoal, with its document."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = []
    for path in documents:
        blocks = find_blocks(path.read_text(encoding="utf-8"), "sh")
        lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
        found += [(path.name, line.partition(" #")[0]) for line in lines if "shoal " in line]
    return found


@pytest.mark.parametrize(("document", "line"), list_documented_commands())
def test_a_documented_command_has_only_known_options(document: str, line: str) -> None:
    """Whether or not a test also runs it: no document names a command or option that is not."""
    words = shlex.split(re.split(r"[|&;>)]", line[line.index("shoal ") :])[0])[1:]
    command: click.Command = main
    while isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words.pop(0)
        if not words:
            return
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{document}: {name} is not a command"
        command = found
    command.make_context(command.name or "", words, resilient_parsing=True)


def test_commands_of_the_dashboards_guide_generate_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = [c for c in commands_of("dashboards") if c.startswith("shoal generate")]
    assert len(wanted) == 3
    for command in wanted:
        assert execute(shlex.split(command)[1:]) == 0
    assert (tmp_path / "deploy" / "prometheus" / "prometheus.yml").is_file()


@pytest.mark.spark
@pytest.mark.long
def test_ten_minutes_from_clone_to_verdict(tmp_path: Path) -> None:
    [experiment] = find_blocks(TEN_MINUTES, "toml")
    (tmp_path / "first.toml").write_text(experiment)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "200"}
    wanted = commands_of("ten-minutes")
    assert RUN in wanted
    shown = {}
    for command in wanted:
        if command in NOT_OURS:
            continue
        done = subprocess.run(
            ["sh", "-c", command],  # noqa: S607 - any POSIX shell will do
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        if command != "shoal doctor":  # this machine may lack something
            assert done.returncode == 0, f"{command}: {done.stderr}"
        shown[command] = done.stdout
    assert "PROVEN: All 8,000 acknowledged messages were delivered" in shown[RUN]
    assert "proven: All 8,000" in shown["shoal runs show"]
