"""The address of a page with its token: only the user's browser gets it, by a private file."""

import os
import re
import shutil
import stat
from pathlib import Path

import psutil
import pytest

from shoal.cli import demo
from shoal.cli.shared import browser
from support.lite.clusters import eventually
from support.web_server import Served, serve_runs


@pytest.fixture
def browser_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A desktop whose browser only writes its arguments to this file."""
    seen, program = tmp_path / "seen", tmp_path / "bin" / "xdg-open"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {seen}.new\nmv {seen}.new {seen}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return seen


def read_redirect(seen: Path) -> tuple[Path, str]:
    """The file that the browser was given, and the address to which it leads."""
    eventually(seen.exists)
    file = Path(seen.read_text().strip())
    found = re.search(r'url=(http://[^"]+)"', file.read_text())
    assert found
    return file, found[1]


def list_arguments() -> str:
    """The arguments of all processes that run, as every user sees them."""
    found = (process.info["cmdline"] for process in psutil.process_iter(["cmdline"]))
    return "\n".join(" ".join(arguments or ()) for arguments in found)


def test_no_process_has_the_token_among_its_arguments(
    browser_arguments: Path, tmp_path: Path
) -> None:
    with serve_runs(tmp_path, "--open", state=tmp_path / "state") as served:
        file, address = read_redirect(browser_arguments)
        token = served.address.partition("token=")[2]
        assert address == served.address
        assert token not in browser_arguments.read_text()
        assert token not in list_arguments()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        served.log_in()
        assert served.request("/api/v1/now").status == 200
    assert not file.exists()


@pytest.mark.system("chromium")
def test_a_browser_that_opens_the_file_is_logged_in(
    browser_arguments: Path, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    from support.web_browser import PATIENCE_MS, open_browser

    assert shutil.which("chromium")
    with (
        serve_runs(tmp_path, "--open", state=tmp_path / "state") as served,
        open_browser() as shown,
    ):
        file, _ = read_redirect(browser_arguments)
        page = shown.new_page()
        page.goto(file.as_uri())
        page.wait_for_url(f"http://{served.host}/**", timeout=PATIENCE_MS)
        expect(page.get_by_text("Loading…")).to_have_count(0, timeout=PATIENCE_MS)
        cookies = [cookie["name"] for cookie in page.context.cookies()]
        assert cookies == [f"shoal-{served.port}"]
        assert "token" not in page.url
        page.close()


class StandIn:
    """What the page of the demo shows, without a demo."""

    def snapshot(self) -> dict[str, object]:
        return {}

    def press(self) -> None: ...


# Click does not wait for the browser, whose process this one then still has.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_page_of_the_demo_opens_by_such_a_file_too(
    browser_arguments: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo._page(StandIn(), tmp_path, is_wanted=True) as is_visited:  # type: ignore[arg-type]
        _, address = read_redirect(browser_arguments)
        assert address in capsys.readouterr().err
        assert address.endswith("#/demo")
        assert address.partition("token=")[2].partition("#")[0] not in list_arguments()
        port = int(address.split(":")[2].partition("/")[0])
        served = Served(port, address.partition("#")[0], 0, None)  # type: ignore[arg-type]
        path = served.address.partition(served.host)[2]
        assert not is_visited()
        assert served.request(path).status == 303
        assert is_visited()


@pytest.mark.parametrize("variable", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_without_a_desktop_or_a_folder_the_address_is_printed(
    browser_arguments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("DISPLAY")
    assert not browser.open_address("http://127.0.0.1:1/?token=a")
    monkeypatch.setenv(variable, "0")
    (tmp_path / "state").write_text("not a folder")
    assert not browser.open_address("http://127.0.0.1:1/?token=a")
    assert not browser_arguments.exists()
