"""The pytest plugin, used as a project of somebody else would use it."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

PLUGIN = "shoal.lite.pytest_plugin"
ROOT = Path(__file__).parents[2]

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""

# The clusters of one session are shared, and whole again after each test.
TESTS = """
import pytest

seen = set()

@pytest.mark.parametrize("again", [1, 2])
def test_shared(shoal_bootstrap, shoal_topic, again):
    seen.add((shoal_bootstrap, shoal_topic))
    assert len({bootstrap for bootstrap, _ in seen}) == 1
    assert len(seen) == again

@pytest.mark.shoal_cluster(brokers=2)
@pytest.mark.parametrize("again", [1, 2])
def test_mended(shoal_cluster, again):
    assert [node.state for node in shoal_cluster.status()] == ["running"] * 2
    assert shoal_cluster.faults() == []
    shoal_cluster.cut_link(1, 2)
    shoal_cluster.kill(1)
    shoal_cluster.pause(2)

@pytest.mark.shoal_cluster(fresh=True)
async def test_in_a_loop(shoal_cluster, shoal_topic):
    assert len(shoal_cluster.nodes()) == 1
"""


def run_tests(folder: Path, text: str) -> str:
    (folder / "test_mine.py").write_text(text)
    (folder / "pytest.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--strict-markers"]
    done = subprocess.run(
        [*command, *plugin_option()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout + done.stderr


def plugin_option() -> list[str]:
    """Nothing where pytest finds the plugin by itself: it cannot be there twice."""
    is_installed = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    return [] if is_installed else ["-p", PLUGIN]


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "testing.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert "4 passed" in run_tests(tmp_path, example)


def test_clusters_are_shared_and_mended(tmp_path: Path) -> None:
    assert "5 passed" in run_tests(tmp_path, TESTS)


def test_pytest_finds_it_by_itself() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"shoal": PLUGIN}


def test_it_costs_nothing_where_no_fixture_is_used() -> None:
    code = f"""
import sys, pytest
before = set(sys.modules)
import {PLUGIN}
print(*sorted(name for name in set(sys.modules) - before if name.startswith(("shoal", "kio"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["shoal", "shoal.lite", PLUGIN]


def test_its_markers_are_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--markers", *plugin_option()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        cwd="/",
    )
    assert {"@pytest.mark.shoal_cluster(brokers", "@pytest.mark.shoal_topic(partitions"} <= {
        line.partition("=")[0] for line in done.stdout.split("\n")
    }
