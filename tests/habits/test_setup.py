"""Set-up refuses what cannot work with one message and its remedy."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "setup.py"

# Runs the script as if on another machine; what follows `;` prepares it.
AS_IF = "import sys, platform, shutil, runpy; {}; runpy.run_path({!r})"


def refusal(preparation: str = "pass", **environment: str) -> str:
    command = [sys.executable, "-c", AS_IF.format(preparation, str(SCRIPT))]
    outcome = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert len(outcome.stderr.splitlines()) == 2
    return outcome.stderr


@pytest.mark.parametrize(
    ("preparation", "problem", "remedy"),
    [
        ("sys.platform = 'win32'", "Windows", "WSL"),
        ("sys.platform = 'sunos5'", "'sunos5' is not supported", "Linux or macOS"),
        ("platform.libc_ver = lambda: ('', '')", "no glibc", "Debian"),
        ("platform.machine = lambda: 'riscv64'", "'riscv64' has no prebuilt wheels", "x86-64"),
        (
            "shutil.disk_usage = lambda _: type('usage', (), {'free': 1e9})",
            "only 1.0 GB free",
            "free some disk space",
        ),
    ],
)
def test_a_machine_that_cannot_work_is_told_so(preparation: str, problem: str, remedy: str) -> None:
    said = refusal(preparation)
    assert problem in said
    assert remedy in said.splitlines()[1]


def test_a_python_that_cannot_work_is_told_so() -> None:
    said = refusal(PYTHON="no-such-python")
    assert "no usable Python found (tried no-such-python)" in said
    assert "Python 3.11 to 3.14" in said


def test_the_script_runs_on_pythons_that_shoal_does_not_support() -> None:
    """It must be able to say so: nothing newer than Python 3.6 may stand in it."""
    assert ast.parse(SCRIPT.read_text(), feature_version=(3, 6)).body
