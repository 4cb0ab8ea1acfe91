"""A result on the terminal: the verdict first, then the numbers behind it."""

from pathlib import Path

from rich.table import Table

from shoal.cli import console
from shoal.model.exit_codes import ExitCode
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.model.units import format_us
from shoal.model.witness import witness_text

STYLES = {
    Verdict.PROVEN: "bold green",
    Verdict.VIOLATED: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}
EXIT_CODES = {
    Verdict.PROVEN: ExitCode.PROVEN,
    Verdict.VIOLATED: ExitCode.VIOLATED,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
SHOWN_PERCENTILES = ("p50", "p99", "p99.9")


def show_verdict(result: Result, run_dir: Path) -> None:
    """Prints a result as a person reads it."""
    verdict = f"[{STYLES[result.verdict]}]{result.verdict.value.upper()}[/]"
    console.out.print(f"{verdict}: {result.sentence}")
    console.out.print(_numbers(result))
    for name, found in result.findings.items():
        console.out.print(f"  [bold]{name}[/]: {found.count:,}")
        if found.witness:
            console.out.print(f"    {witness_text(found.witness)}", markup=False)
    console.out.print(f"  report  {run_dir / 'report.html'}")


def _numbers(result: Result) -> Table:
    m = result.metrics
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("yield", _ratio(m.yield_), f"{m.ok:,} acknowledged of {m.attempts:,} attempts")
    table.add_row(
        "completeness", _ratio(m.completeness), f"{m.delivered_ok:,} delivered of {m.ok:,}"
    )
    copies = m.deliveries - m.re_reads - m.delivered
    table.add_row(
        "duplication", _ratio(m.duplication), f"{copies:,} of {m.deliveries:,} deliveries"
    )
    table.add_row("order", _ratio(m.order), f"F = {m.F:,}, K = {m.K:,}")
    latency = m.latency_us.get("e2e_intended")
    if latency is not None and latency.max is not None:
        shown = [f"{n} {format_us(latency.percentiles[n])}" for n in SHOWN_PERCENTILES]
        table.add_row("latency", "end to end", ", ".join([*shown, f"max {format_us(latency.max)}"]))
    return table


def _ratio(value: float | None) -> str:
    return "unknowable" if value is None else f"{value:.6g}"
