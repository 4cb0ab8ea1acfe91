"""A real browser with pages that are logged in; an error in a console fails the test."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from support.web_server import Served

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000
PHONE, DESK = 390, 1280


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        executable = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, served: Served) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": DESK, "height": 900})
    name, _, value = served.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": f"http://{served.host}"}])
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    yield page
    context.close()
    assert problems == []


_QUICK_LOOKS = ("light-1280", "dark-390")


def in_looks(names: Iterable[str]) -> list[object]:
    """Parameters `name` and `look`: in `make test` each place has one look, a desk's or a phone's
    in turn; the long tests have all four of all places."""
    made: list[object] = []
    for place, name in enumerate(names):
        for look in (*_QUICK_LOOKS, "dark-1280", "light-390"):
            is_quick = look == _QUICK_LOOKS[place % 2]
            marks = () if is_quick else pytest.mark.long
            made.append(pytest.param(name, look, id=f"{name}-{look}", marks=marks))
    return made


def take_on(page: Page, look: str) -> int:
    """Give a page a colour scheme and a width, which is returned."""
    scheme, _, width = look.partition("-")
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": int(width), "height": 900})
    return int(width)


def check_look(page: Page, look: str, picture: Path) -> None:
    """Nothing scrolls sideways, axe finds nothing; the picture is for people."""
    width = int(look.partition("-")[2])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Playwright writes files by a thread that stays.
    picture.write_bytes(page.screenshot(full_page=True))
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def open_place(page: Page, served: Served, place: str, heading: str) -> None:
    page.goto(f"http://{served.host}/{place}")
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    expect(page.get_by_text("Loading…")).to_have_count(0)
