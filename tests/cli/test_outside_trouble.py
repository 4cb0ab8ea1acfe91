"""What a machine does to a command: Ctrl-C, full and read-only disks, used ports, other encodings.

Each ends with one message, and never with a traceback.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import execute
from shoal.model.exit_codes import ExitCode
from shoal.runtime.os_errors import describe_os_error
from support.audit.history_files import DRAINED, receive, run, send

SHOAL = (sys.executable, "-m", "shoal")
# Sends Ctrl-C to the process itself in the middle of an import.
INTERRUPTED_IMPORT = """
import os, signal, sys
import shoal.__main__ as entry
wanted = [sys.argv.pop(1)]
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name in wanted:
            wanted.clear()
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
entry.run()
"""


CONTROLLER = (
    *("controller", "--id", "1", "--dir", "{folder}", "--listen", "127.0.0.1:{port}"),
    *("--controllers", "1@127.0.0.1:{port}", "--cluster-id", "c"),
)


def check_one_message(done: "subprocess.CompletedProcess[str]", code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def call(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHOAL, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | more,
        timeout=100,
        errors="surrogateescape",
    )


@pytest.mark.parametrize("module", ["shoal.cli.main", "rich_click", "shoal.cli.audit", "numpy"])
def test_ctrl_c_during_an_import_is_one_message(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "audit", "--self-test"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    check_one_message(done, ExitCode.INTERRUPTED)
    assert done.stderr.splitlines()[-1] == "interrupted"


def test_a_full_disk_is_one_message_when_it_takes_the_output() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [*SHOAL, "runs", "list", "-o", "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
    check_one_message(done, ExitCode.UNEXPECTED, "no space left on device", "free space")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=16k", ("no space left on device", "what to do: free space")),
        ("ro", ("cannot write", "read-only file system", "choose a folder that can be written")),
    ],
)
def test_a_full_or_read_only_disk_is_one_message(
    options: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """A file system of this test alone, in a mount namespace of its own."""
    mount = f"mount -t tmpfs -o {options} none {tmp_path}"
    command = f"{mount} && exec {sys.executable} -m shoal cluster up --dir {tmp_path}/out"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    check_one_message(done, ExitCode.UNEXPECTED, *words)


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--port", "{port}"),
        CONTROLLER,
        ("cluster", "up", "--metrics-port", "{port}"),
    ],
    ids=["serve", "controller", "metrics"],
)
def test_a_port_in_use_is_one_message(command: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        filled = [word.format(port=port, folder=tmp_path / "node") for word in command]
        done = call(*filled, XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode in {ExitCode.UNEXPECTED, ExitCode.USAGE, ExitCode.INVALID_CONFIG}
    check_one_message(done, done.returncode, port, "in use")


def test_output_fits_any_encoding(tmp_path: Path) -> None:
    """Names that the terminal cannot show are escaped; JSON stays JSON."""
    history = tmp_path / "history.jsonl"
    odd = {"topic": "påske→🐟"}
    lines = [run(), send(0) | odd, *(line | odd for line in receive(0)), send(1) | odd, DRAINED]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for encoding in ("ascii", "latin-1"):
        text = call("audit", "--history", str(history), PYTHONIOENCODING=encoding)
        check_one_message(text, ExitCode.VIOLATED)
        found = call("audit", "--history", str(history), "-o", "json", PYTHONIOENCODING=encoding)
        check_one_message(found, ExitCode.VIOLATED)
        assert "påske→🐟" in json.dumps(json.loads(found.stdout), ensure_ascii=False)


def test_names_are_whole_in_a_pipe(tmp_path: Path) -> None:
    name = "a-very-long-name-of-a-run-" * 8
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    described = {"format": 2, "run": name, "state": "finished", "started_us": 1, "driver": None}
    (folder / "run.json").write_text(json.dumps(described))
    done = call("runs", "list", "--runs-dir", str(tmp_path / "runs"), COLUMNS="60")
    assert done.stdout.count(name) == 2
    assert len(done.stdout.splitlines()) == 2
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def test_the_doctor_keeps_brackets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.systems import doctor

    absent = doctor._check_package("no-such-package", "web", "serve")
    monkeypatch.setattr(doctor, "examine", lambda: [absent])
    assert execute(["doctor"]) == ExitCode.PROVEN
    shown = capsys.readouterr()
    assert "pip install 'shoal[web]'" in shown.out
    assert shown.out.startswith("note")
    assert "nothing is missing" in shown.err


@pytest.mark.parametrize(
    "command",
    [
        ("run", "mirror-correctness", "--runs-dir", "{folder}/file/runs"),
        ("demo", "--no-page", "--runs-dir", "{folder}/file/runs"),
        ("bench", "--runs-dir", "{folder}/file/runs"),
        ("sweep", "consistency", "--vary", "acks=1,all", "--runs-dir", "{folder}/file/runs"),
        ("cluster", "up", "--dir", "{folder}/file/data"),
        (*CONTROLLER[:3], "--dir", "{folder}/file/data", *CONTROLLER[5:]),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_cannot_be_made_is_one_message_at_once(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing is started first: neither clusters nor Spark."""
    (tmp_path / "file").touch()
    filled = [word.format(folder=tmp_path, port=1) for word in command]
    done = call(*filled, XDG_STATE_HOME=str(tmp_path / "state"))
    check_one_message(done, ExitCode.UNEXPECTED, "file/", "what to do: choose a folder")
    assert "waiting for" not in done.stderr
    assert "Errno" not in done.stderr


def test_unknown_errors_of_the_system_point_to_the_traceback() -> None:
    found = describe_os_error(OSError(5, "Input/output error", "/data/x"))
    assert found.message == "/data/x: input/output error"
    assert "--verbose" in str(found)


def test_a_second_signal_is_not_needed() -> None:
    """A command that waits ends at the first Ctrl-C, with the documented code."""
    with subprocess.Popen([*SHOAL, "cluster", "up"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("bootstrap.servers=")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
