"""Prints a result: the verdict first, then the numbers behind it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.cli.shared import console
from shoal.model.exit_codes import ExitCode
from shoal.model.findings import Verdict
from shoal.model.result import Latency, Result
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
SEVERITY = (Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.PROVEN)  # the worst first
SHOWN_PERCENTILES = ("p50", "p99", "p99.9")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several verdicts."""
    return min(verdicts, key=SEVERITY.index)


def exit_code(results: Iterable[tuple[str, Result]]) -> ExitCode:
    """The exit code of several results: violated, then a missed threshold, then inconclusive."""
    found = list(results)
    for name, result in found:
        for missed in result.missed:
            for sentence in missed.sentences():
                console.say(f"threshold not met in {name}: {sentence}", style="bold red")
    verdict = worst(result.verdict for _, result in found)
    if verdict is not Verdict.VIOLATED and any(result.missed for _, result in found):
        return ExitCode.THRESHOLDS_FAILED
    return EXIT_CODES[verdict]


def show_verdict(result: Result, run_dir: Path | str) -> None:
    """Print a result as text, and the path of its report."""
    show_numbers(result)
    console.print_line(f"  report  {run_dir}/report.html")


def show_numbers(result: Result) -> None:
    """Print the verdict, the metrics behind it, and each finding with its smallest witness."""
    verdict = result.verdict.value.upper(), STYLES[result.verdict]
    console.print_line(verdict, f": {result.sentence}")
    for name, value, explanation in _numbers(result):
        console.print_line(f"  {name:<13} {value:<11} {explanation}")
    for missed in result.missed:
        for sentence in missed.sentences():
            console.print_line((f"  threshold missed: {sentence}", "bold red"))
    for line in _faults(result):
        console.print_line(f"  {line}")
    for name, found in result.findings.items():
        console.print_line("  ", (name, "bold"), f": {found.count:,}")
        if found.witness:
            console.print_line(f"    {witness_text(found.witness)}")


def _numbers(result: Result) -> Iterator[tuple[str, str, str]]:
    m = result.metrics
    acknowledged = f"{m.ok:,} acknowledged of {m.attempts:,} attempts, {m.unknown:,} unknown"
    yield "yield", _ratio(m.yield_), acknowledged
    yield "completeness", _ratio(m.completeness), f"{m.delivered_ok:,} delivered of {m.ok:,}"
    copies = m.deliveries - m.re_reads - m.delivered
    yield "duplication", _ratio(m.duplication), f"{copies:,} of {m.deliveries:,} deliveries"
    yield "order", _ratio(m.order), f"F = {m.F:,}, K = {m.K:,}"
    latency = m.latency_us.get("e2e_intended")
    if latency is not None and latency.max is not None:
        shown = [f"{n} {format_owed_latency(latency, n)}" for n in (*SHOWN_PERCENTILES, "max")]
        if latency.undelivered:
            shown.append(f"{latency.undelivered:,} never delivered")
        yield "latency", "end to end", ", ".join(shown)
        if latency.skew_us != (0, 0):
            yield "clock skew", *_skew(latency.skew_us)


def _skew(skew_us: tuple[int, int] | None) -> tuple[str, str]:
    if skew_us is None:
        return "unknown", "the clocks of producers and consumers were not compared"
    low, high = (f"{bound / 1000:+.3f} ms" for bound in skew_us)
    return "bounded", f"subtract {low} to {high} from these latencies to get the true ones"


def _faults(result: Result) -> Iterator[str]:
    """One line for each fault: when it had an effect, and what was lost during it."""
    names = {fault["fault"]: f"{fault['name']} {fault['target']}" for fault in result.faults}
    for window in result.worst.windows:
        if window.fault is None:
            continue
        felt, over = window.time_to_detect_us, window.time_to_recover_us
        text = "not felt" if felt is None else f"felt after {format_us(felt)}"
        if felt is not None:
            text += ", never over" if over is None else f", over after {format_us(over)}"
        drained = window.time_to_drain_us
        text += "" if drained is None else f", drained {format_us(drained)} after its end"
        text += f"; {window.counts['lost']:,} lost"
        yield f"fault {window.fault} ({names[window.fault]}): {text}"


def _ratio(value: float | None) -> str:
    return "unknowable" if value is None else f"{value:.6g}"


def format_owed_latency(latency: Latency | None, name: str) -> str:
    """A statistic of the messages owed as text: "never" if losses reach it."""
    value = None if latency is None else latency.owed().get(name)
    return "-" if value is None else format_us(value)
