"""Run presets without changes, by one command each, on Kafka Lite and on Apache Kafka.

    python scripts/prove_presets.py --report docs/proofs/presets.md
    python scripts/prove_presets.py --engine apache --preset consistency --kafka 2.8.1 --report …

Exit code 1 if a preset ends without a verdict, with an unexpected verdict, or, for those in
`TIMED`, after more than 5 minutes. `--engine`, `--preset` and `--kafka` (versions of Apache Kafka)
select what runs, and may be repeated. The rows of a command replace the older rows of the same
preset on the same engine in the report; other rows stay. `--runs-dir` keeps the runs.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.experiment.presets import find, presets
from shoal.experiment.spec import load_variants
from shoal.runtime.conditions import code_version, conditions
from shoal.systems.apache.jars import NEWEST_KAFKA

LIMIT_S = 300.0
TIMED = ("mirror-correctness", "consistency", "shallow-vs-deep", "e2e-latency", "broker-deaths")
KILL_AFTER_S = 600.0
ENGINES = ("lite", "apache")
# With acks=0 nothing is acknowledged, so such a run is inconclusive.
GOOD_VERDICTS = ("proven", "inconclusive")
# This preset must show an acknowledged message that is lost.
VIOLATED = ("leader-lost", "acks-1")
COLUMNS = (
    "preset",
    "variant",
    "engine",
    "command, s",
    "verdict",
    "attempts",
    "lost",
    "yield",
    "harvest",
    "duplicates",
    "order",
    "latency p50 / p99, ms",
    "mirror CPU s",
    "MB",
    "date",
    "code",
)
NOTES = """\
With acks=0 nothing is acknowledged, so nothing is proven and there is no yield; `leader-lost` with
acks=1 is there to be violated. Where there are several groups of consumers the numbers are those of
the worst. One command runs all variants of a preset. Faults are in the files of the presets."""


@dataclass(frozen=True)
class Row:
    """One variant of one command: a row of the report."""

    cells: tuple[str, ...]

    @property
    def command(self) -> tuple[str, str]:
        return self.cells[0], self.cells[2]

    @property
    def is_good(self) -> bool:
        preset, variant, _, seconds, verdict = self.cells[:5]
        if preset in TIMED and float(seconds or 0) > LIMIT_S:
            return False
        return verdict == "violated" if (preset, variant) == VIOLATED else verdict in GOOD_VERDICTS

    def __str__(self) -> str:
        return f"| {' | '.join(self.cells)} |"


def prove(preset: str, engine: str, version: str | None, runs_dir: Path) -> list[Row]:
    """Run `shoal run` and read its results from a folder of its own."""
    versions = [f"--set={role}.version={version}" for role in roles(preset) if version]
    begin = datetime.now(UTC).date().isoformat(), code_version("src").removeprefix("commit ")
    folder = Path(tempfile.mkdtemp(dir=runs_dir, prefix=f"{preset}-{engine}-"))
    command = [sys.executable, "-m", "shoal", "--quiet", "run", preset]
    command += ["--engine", engine, "--runs-dir", str(folder), *versions]
    started = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=KILL_AFTER_S, check=False
    )
    seconds = f"{time.monotonic() - started:.0f}"
    named = f"{engine} {version}" if version else engine
    rows = []
    for file in sorted(folder.glob("*/result.json")):
        variant = file.parent.name.partition(preset)[2].strip("-") or "-"
        shown = _cells(json.loads(file.read_text()))
        rows.append(Row((preset, variant, named, seconds, *shown, *begin)))
        seconds = ""  # one command, one time
    if len(rows) < len(load_variants(find(preset))):
        empty = [""] * (len(COLUMNS) - 7)
        said = f"NONE, exit code {done.returncode}"
        rows.append(Row((preset, "-", named, seconds, said, *empty, *begin)))
    if not all(row.is_good for row in rows):
        print(done.stdout[-4000:], done.stderr[-4000:])
    return rows


def roles(preset: str) -> list[str]:
    return list(load_variants(find(preset))[0].clusters)


def _cells(result: dict[str, Any]) -> Iterator[str]:
    metrics = result["metrics"]
    latency = metrics["latency_us"]["e2e_intended"]
    used = (result.get("mirror") or {}).get("usage") or {}
    yield result["verdict"]
    yield f"{metrics['attempts']:,}"
    yield f"{metrics['lost']:,}"
    yield from (_ratio(metrics[name]) for name in ("yield", "harvest", "duplication", "order"))
    yield f"{latency['p50'] / 1000:.0f} / {latency['p99'] / 1000:.0f}"
    yield f"{used['cpu_s']:.1f}" if used else "-"
    yield f"{used['peak_memory_bytes'] / 1e6:.0f}" if used else "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def write_report(path: Path, new: list[Row], seconds: float) -> None:
    """Write the proof as Markdown: these rows, and the existing rows of other commands."""
    kept = [row for row in _read_rows(path) if row.command not in {one.command for one in new}]
    places = {name: place for place, name in enumerate(presets())}
    rows = sorted([*kept, *new], key=lambda row: (places.get(row.cells[0], -1), row.cells[2]))
    commands = {row.command for row in rows}
    bad = sorted({row.command for row in rows if not row.is_good})
    said = "each ended with the verdict that it should have"
    said += f" ({', '.join(TIMED)}: within 5 minutes each)"
    if bad:
        said = "NOT PROVEN: " + ", ".join(f"{preset} on {engine}" for preset, engine in bad)
    table = "\n".join(map(str, rows))
    command = " ".join(["scripts/prove_presets.py", *sys.argv[1:]])
    shown = conditions(command, elapsed_s=seconds, packages=["pyspark"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"""# Proof: presets, as they stand

`shoal run PRESET --engine ENGINE`, {len(commands)} commands: {said}.

| {" | ".join(COLUMNS)} |
|{"---|" * len(COLUMNS)}
{table}

{NOTES}

The last command:

{shown}
""")


def _read_rows(path: Path) -> Iterator[Row]:
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == len(COLUMNS) and cells[0] in presets():
            yield Row(cells)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--preset", action="append", choices=list(presets()))
    parser.add_argument("--kafka", action="append", help=f"default: {NEWEST_KAFKA}")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--runs-dir", type=Path, help="default: a temporary folder")
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.runs_dir is not None:
        options.runs_dir.mkdir(parents=True, exist_ok=True)
        return prove_all(options, options.runs_dir)
    with tempfile.TemporaryDirectory(prefix="shoal-presets-") as folder:
        return prove_all(options, Path(folder))


def prove_all(options: argparse.Namespace, runs_dir: Path) -> int:
    wanted: list[tuple[str, str | None]] = []
    for engine in options.engine or ENGINES:
        versions = (options.kafka or [NEWEST_KAFKA]) if engine == "apache" else [None]
        wanted += [(engine, version) for version in versions]
    is_good = True
    for preset, (engine, version) in itertools.product(options.preset or presets(), wanted):
        started = time.monotonic()
        rows = prove(preset, engine, version, runs_dir)
        seconds = time.monotonic() - started
        print(*rows, sep="\n", flush=True)
        is_good &= all(row.is_good for row in rows)
        if options.report is not None:
            write_report(options.report, rows, seconds)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
