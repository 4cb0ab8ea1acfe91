"""Fifty wrong experiments, made by chance from the presets: one message each, nothing started."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shoal.cli.main import execute
from shoal.experiment.presets import find, presets
from shoal.model.exit_codes import ExitCode

COUNT = 50
_KEY = re.compile(r"^([a-z_]+) = (.+)$")
_SECTION = re.compile(r"^\[+([a-z]+)\]+$")

Lines = list[str]
Chance = random.Random


def misspelt_key(lines: Lines, chance: Chance) -> int:
    at = chance.choice([n for n, line in enumerate(lines) if _KEY.match(line)])
    key, _, value = lines[at].partition(" = ")
    spot = chance.randrange(len(key))
    lines[at] = f"{key[:spot]}{key[spot] * 2}q{key[spot + 1 :]} = {value}"
    return at


def misspelt_section(lines: Lines, chance: Chance) -> int:
    at = chance.choice([n for n, line in enumerate(lines) if _SECTION.match(line)])
    lines[at] = lines[at].replace("[", "[x", 1) if "[[" not in lines[at] else "[[faults]]"
    return at


def wrong_type(lines: Lines, chance: Chance) -> int:
    at = chance.choice([n for n, line in enumerate(lines) if _KEY.match(line)])
    key = lines[at].partition(" = ")[0]
    lines[at] = f"{key} = [[1, 2], 1979-05-27]"
    return at


def broken_toml(lines: Lines, chance: Chance) -> int:
    at = chance.choice([n for n, line in enumerate(lines) if _KEY.match(line)])
    lines[at] = lines[at].partition(" = ")[0] + " = = "
    return at


def senseless_value(lines: Lines, chance: Chance) -> int:
    wrong = {
        "rate": ["-1", '"fast"', "0"],
        "size": ['"big"', "-5"],
        "brokers": ["0", "-3", "1000"],
        "partitions": ["0", '"many"'],
        "duration": ['"soon"', "-1"],
        "delivery": ['"maybe_once"'],
        "kind": ['"mm7"', '"none"'],
        "messages": ['"lots"', "-1"],
        "order": ['"sometimes"'],
        "drain_timeout": ['"later"'],
    }
    at = chance.choice(
        [n for n, line in enumerate(lines) if (m := _KEY.match(line)) and m[1] in wrong]
    )
    key = lines[at].partition(" = ")[0]
    lines[at] = f"{key} = {chance.choice(wrong[key])}"
    return at


MISTAKES: tuple[Callable[[Lines, Chance], int], ...] = (
    misspelt_key,
    misspelt_section,
    wrong_type,
    broken_toml,
    senseless_value,
)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_bad_file_gets_one_message_and_starts_nothing(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    lines = find(chance.choice(sorted(presets()))).read_text().splitlines()
    at = MISTAKES[seed % len(MISTAKES)](lines, chance)
    file = tmp_path / "bad.toml"
    file.write_text("\n".join(lines))
    before = set(psutil.Process().children(recursive=True))
    # A file that is not refused would run for long; so it is looked through first.
    assert execute(["run", str(file), "--dry-run"]) != 0, lines[at]
    capfd.readouterr()
    code = execute(["run", str(file), "--runs-dir", str(tmp_path / "runs")])
    said = capfd.readouterr()
    assert code in (ExitCode.INVALID_CONFIG, ExitCode.USAGE), lines[at]
    assert set(psutil.Process().children(recursive=True)) == before
    assert not (tmp_path / "runs").exists()
    assert said.out == ""
    assert said.err.lower().count("error") == 1, said.err
    assert "Traceback" not in said.err
    # What a whole file means may come out wrong elsewhere than in the line that was changed.
    assert "bad.toml" in said.err.replace("\n", "") or lines[at].partition(" ")[0] in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere.toml"],
        ["consistancy"],
        ["consistency", "--set", "producer.acks"],
        ["consistency", "--set", "producer.ackss=1"],
        ["consistency", "--set", "count=1"],
        ["consistency", "--canary-topic", "theirs"],
        ["consistency", "--max-rate", "fast"],
        ["broker-deaths", "--set", "producer.duration=1s"],
    ],
)
def test_a_bad_command_line_gets_one_message(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = execute(["run", *arguments, "--runs-dir", str(tmp_path / "runs")])
    assert code in (ExitCode.INVALID_CONFIG, ExitCode.USAGE)
    assert not (tmp_path / "runs").exists()
    said = capfd.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
