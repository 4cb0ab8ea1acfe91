"""Writes what a judged run leaves for readers: `report.html`, `junit.xml` and `summary.md`."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shoal.model.pages.run import FILE_NAME as PAGE_FILE
from shoal.model.result import Result
from shoal.model.run_folder import read_plan
from shoal.report.page import Events, render
from shoal.report.twins import JUNIT_FILE, MARKDOWN_FILE, render_junit, render_markdown

REPORT_FILE: Final = "report.html"


def write_report_files(run_dir: Path, result: Result, events: Events) -> None:
    """Write the report of a run and its twins; `events` is what the run and its parts wrote."""
    manifest = read_plan(run_dir)
    report = render(result, manifest, _read_page(run_dir), events)
    (run_dir / REPORT_FILE).write_text(report, encoding="utf-8")
    junit = render_junit(result, manifest)
    (run_dir / JUNIT_FILE).write_text(junit, encoding="utf-8", errors="replace")
    (run_dir / MARKDOWN_FILE).write_text(render_markdown(result), encoding="utf-8")


def _read_page(run_dir: Path) -> dict[str, Any] | None:
    """The data behind the charts; None for a run without it."""
    with suppress(OSError, ValueError):
        page = json.loads((run_dir / PAGE_FILE).read_bytes())
        return page if isinstance(page, dict) else None
    return None
