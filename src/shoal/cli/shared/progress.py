"""What a command shows while it works: rate, latency, elapsed time, faults as they strike.

On a terminal the view is redrawn in place; elsewhere it is one line every few seconds, so that a
log file shows it too. `--quiet` shows nothing.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from shoal.cli.shared import console
from shoal.model.units import format_us
from shoal.runtime.os_errors import describe_os_error
from shoal.telemetry.definitions import LATENCY_BOUNDS_US

if TYPE_CHECKING:
    from shoal.experiment.faults.fault_injection import FaultEvent
    from shoal.experiment.run import RunProgress

PRINT_EVERY_S: Final = 2.0
REPEAT_EVERY_S: Final = 15.0  # a line that has not changed
_RATE_OVER_S: Final = 5.0
_BAR_WIDTH: Final = 40
_REDRAWS_PER_S: Final = 5


class Rate:
    """Messages per second over the last few seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        """Add the count so far; return the rate."""
        now_s = self._now_s()
        self._seen.append((now_s, count))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= _RATE_OVER_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return (count - before) / (now_s - since_s) if now_s > since_s else 0.0


def percentile_bound(counts: Sequence[int], percent: float) -> str:
    """A percentile of a histogram with the buckets of the metrics, as an upper bound; or ""."""
    total, seen = sum(counts), 0
    for bound, count in zip(LATENCY_BOUNDS_US, counts, strict=False):
        seen += count
        if total and seen * 100 >= total * percent:
            return f"p{percent:g} < {format_us(bound)}"
    return f"p{percent:g} > {format_us(LATENCY_BOUNDS_US[-1])}" if total else ""


def format_elapsed(seconds: float) -> str:
    """A duration as people write it: 8 s, 2 min 05 s, 1 h 02 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def histogram_lines(counts: Sequence[int]) -> list[str]:
    """A latency histogram as text: a line for each bucket between the first and the last used."""
    used = [place for place, count in enumerate(counts) if count]
    if not used:
        return []
    labels = [f"< {format_us(bound)}" for bound in LATENCY_BOUNDS_US]
    labels.append(f"> {format_us(LATENCY_BOUNDS_US[-1])}")
    total, most = sum(counts), max(counts)
    lines = []
    for place in range(used[0], used[-1] + 1):
        count = counts[place]
        bar = "█" * max(round(count / most * _BAR_WIDTH), 1 if count else 0)
        lines.append(f"  {labels[place]:>11}  {count:>12,} {count / total:>6.1%}  {bar}".rstrip())
    return lines


def format_fault(event: "FaultEvent") -> str:
    """One line about a fault that begins, ends or fails."""
    phase = {"begin": "begins", "end": "is over"}.get(event.phase, event.phase)
    what = f"fault {event.number} ({event.name} {event.target})"
    if event.failed:
        return f"{event.after_s:.1f} s: {what} failed: {event.failed}"
    return f"{event.after_s:.1f} s: {what} {phase}"


class RunView:
    """Shows one run: a bar on a terminal, or else a line every few seconds."""

    def __init__(self, bar: Progress, now_s: Callable[[], float] = time.monotonic) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, counts="")
        self._now_s = now_s
        self._started_s = now_s()
        self._printed_s = -PRINT_EVERY_S
        self._doing = self._text = ""
        self._rate = Rate(now_s)

    def __call__(self, step: "RunProgress") -> None:
        counts = self._describe(step)
        done, total = (step.received, step.total) if step.total else (step.done, step.to_do)
        self._bar.update(self._task, description=step.doing, counts=counts)
        self._bar.update(self._task, total=total or None, completed=done)
        text = f"  {step.doing}: {counts}" if counts else f"  {step.doing}"
        if not console.err.is_terminal and self._is_due(step.doing, text):
            console.say(text)

    def on_fault(self, event: "FaultEvent") -> None:
        """Print a fault when it strikes, above the bar."""
        with suppress(OSError):  # a closed terminal must not fail the fault
            console.say(f"  {format_fault(event)}", "bold red" if event.failed else "yellow")

    def _describe(self, step: "RunProgress") -> str:
        if not step.total:
            return f"{step.done:,} of {step.to_do:,} {step.unit}" if step.to_do else ""
        rate = self._rate.update(step.received)
        counts = [f"{step.sent:,} sent", f"{step.received:,} received", f"{rate:,.0f}/s"]
        counts.append(percentile_bound(step.latencies.get("end_to_end", ())[:-1], 99))
        counts.append(format_elapsed(self._now_s() - self._started_s))
        return ", ".join(filter(None, counts))

    def _is_due(self, doing: str, text: str) -> bool:
        now_s = self._now_s()
        pause_s = REPEAT_EVERY_S if text == self._text else PRINT_EVERY_S
        if doing == self._doing and now_s - self._printed_s < pause_s:
            return False
        self._doing, self._text, self._printed_s = doing, text, now_s
        return True


@contextmanager
def show_progress() -> Iterator[RunView]:
    """Show what a run does."""
    shown = ("{task.description}", "{task.fields[counts]}")
    doing, counts = (TextColumn(text, markup=False) for text in shown)
    columns = (doing, BarColumn(), counts)
    is_shown = console.err.is_terminal and not console.err.quiet
    with Progress(*columns, console=console.err, transient=True, disable=not is_shown) as bar:
        yield RunView(bar)


class ReportView:
    """Shows the reports of one producer or consumer, with its latency histogram."""

    def __init__(
        self, live: Live | None, format_report: Callable[[Mapping[str, Any]], str], counted: str
    ) -> None:
        """`counted` is the field of a report that the rate is about."""
        self._live = live
        self._format = format_report
        self._counted = counted
        self._rate = Rate()
        self._started_s = time.monotonic()
        self._printed_s = -PRINT_EVERY_S
        self.last: Mapping[str, Any] = {}

    def __call__(self, report: Mapping[str, Any]) -> None:
        self.last = report
        rate = self._rate.update(report[self._counted])
        elapsed = format_elapsed(time.monotonic() - self._started_s)
        line = f"{elapsed}, {rate:,.0f}/s: {self._format(report)}"
        if self._live is not None:
            self._live.update(_draw(line, latencies_of(report)))
        elif time.monotonic() - self._printed_s >= PRINT_EVERY_S:
            self._printed_s = time.monotonic()
            console.say(line)


def latencies_of(report: Mapping[str, Any]) -> list[int]:
    """The counts of the buckets in a report of a producer or consumer."""
    found: list[int] = report.get("end_to_end_latency") or report.get("produce_latency") or []
    return found[:-1]  # the last is the sum


def _draw(line: str, counts: Sequence[int]) -> RenderableType:
    return Group(Text(line), *(Text(each) for each in histogram_lines(counts)))


@contextmanager
def show_reports(
    format_report: Callable[[Mapping[str, Any]], str], counted: str
) -> Iterator[ReportView]:
    """Show the reports of a producer or consumer."""
    if not console.err.is_terminal or console.err.quiet:
        yield ReportView(None, format_report, counted)
        return
    with Live(console=console.err, transient=True, refresh_per_second=_REDRAWS_PER_S) as live:
        yield ReportView(live, format_report, counted)


def make_runs_dir(runs_dir: Path) -> None:
    """Create the folder of runs: before anything starts that would only find out at its end."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise describe_os_error(error) from error
    if not os.access(runs_dir, os.W_OK | os.X_OK):
        raise describe_os_error(OSError(errno.EACCES, "", str(runs_dir)))


def new_run_dir(runs_dir: Path, name: str) -> Path:
    """A new folder, named by the time; with a number if that folder exists."""
    make_runs_dir(runs_dir)
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    candidates = (runs_dir / (f"{stem}-{n}" if n else stem) for n in range(1000))
    return next(path for path in candidates if not path.exists())
