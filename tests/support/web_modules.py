"""The modules of the page, one by one, in a real browser: for tests of what is pure in them.

They are served from their folder under a name that only this browser knows, with the pinned
libraries as `vendor.js`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "shoal" / "web" / "page"
ORIGIN = "http://modules.invalid"
_LIBRARY_NAMES = "h, html, render, useState, useEffect, useRef, useErrorBoundary, uPlot"


class Modules:
    """Modules that are loaded when a test first calls a function of them."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """The result of an exported function; arguments and result are JSON."""
        script = "async ([m, f, a]) => { const x = (await import(m))[f]; return typeof x === 'function' ? x(...a) : x; }"  # noqa: E501 - JavaScript
        return self.page.evaluate(script, [f"/{module}.js", function, list(arguments)])


@contextmanager
def open_modules(browser: Browser) -> Iterator[Modules]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.route(f"{ORIGIN}/**", _answer)
    page.goto(f"{ORIGIN}/")
    yield Modules(page)
    context.close()


def _answer(route: Route) -> None:
    name = route.request.url.removeprefix(f"{ORIGIN}/")
    if name == "vendor.js":
        route.fulfill(content_type="text/javascript", body=_join_libraries())
    elif name.endswith(".js"):
        route.fulfill(content_type="text/javascript", body=(PAGE / name).read_text())
    else:
        style = (PAGE / "style.css").read_text()
        body = f"<!doctype html><meta charset=utf-8><style>{style}</style><main id=app></main>"
        route.fulfill(content_type="text/html", body=body)


def _join_libraries() -> str:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import build_page  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    charts = build_page.read_library("uplot", "dist/uPlot.iife.min.js")
    return f"{build_page.wrap_htm()}\n{charts}\nexport {{ {_LIBRARY_NAMES} }};\n"
