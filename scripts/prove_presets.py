"""Run every preset as it stands, by one command each, on Kafka Lite and on Apache Kafka.

    python scripts/prove_presets.py --report docs/proofs/presets.md
    python scripts/prove_presets.py --engine apache --presets consistency --kafka 2.8.1,3.9.2

Exit code 1 if one ends without a verdict, with a violated one, or after more than 5 minutes.
With --kafka each preset runs once for each of these versions of Apache Kafka. With --results
outcomes are kept in a file, and what stands there is not run again.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.experiment.presets import find, presets
from shoal.experiment.spec import load_variants
from shoal.runtime.conditions import conditions

LIMIT_S = 300.0
KILL_AFTER_S = 600.0
# 0 proven, 5 inconclusive: a run with acks=0 proves nothing, and says so.
GOOD = (0, 5)
HEAD = (
    "preset",
    "variant",
    "engine",
    "command, s",
    "verdict",
    "attempts",
    "lost",
    "yield",
    "harvest",
    "duplication",
    "order",
    "latency p50 / p99, ms",
    "mirror CPU s",
    "MB",
)


@dataclass(frozen=True)
class Outcome:
    """One command."""

    preset: str
    engine: str
    seconds: float
    exit_code: int
    rows: list[str]  # of the table, one for each run

    @property
    def is_good(self) -> bool:
        return self.exit_code in GOOD and self.seconds <= LIMIT_S and bool(self.rows)


def prove(preset: str, engine: str, version: str | None) -> Outcome:
    """Runs `shoal run` and reads what it left."""
    named = f"{engine} {version}" if version else engine
    versions = [f"--set={role}.version={version}" for role in roles(preset) if version]
    with tempfile.TemporaryDirectory(prefix="shoal-presets-") as folder:
        command = [sys.executable, "-m", "shoal", "--quiet", "run", preset]
        command += ["--engine", engine, "--runs-dir", folder, *versions]
        started = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=KILL_AFTER_S, check=False
        )
        seconds = time.monotonic() - started
        rows = list(_rows(Path(folder), preset, named, f"{seconds:.0f}"))
    if done.returncode not in GOOD:
        print(done.stdout[-2000:], done.stderr[-2000:])
    return Outcome(preset, named, seconds, done.returncode, rows)


def roles(preset: str) -> list[str]:
    return list(load_variants(find(preset))[0].clusters)


def _rows(folder: Path, preset: str, engine: str, seconds: str) -> Iterator[str]:
    for file in sorted(folder.glob("*/result.json")):
        result = json.loads(file.read_text())
        metrics = result["metrics"]
        variant = file.parent.name.partition(preset)[2].strip("-") or "-"
        latency = metrics["latency_us"]["e2e_intended"]
        used = (result.get("mirror") or {}).get("usage") or {}
        cells = [
            preset,
            variant,
            engine,
            seconds,
            result["verdict"],
            f"{metrics['attempts']:,}",
            f"{metrics['lost']:,}",
            _ratio(metrics["yield"]),
            _ratio(metrics["harvest"]),
            _ratio(metrics["duplication"]),
            _ratio(metrics["order"]),
            f"{latency['p50'] / 1000:.0f} / {latency['p99'] / 1000:.0f}",
            f"{used['cpu_s']:.1f}" if used else "-",
            f"{used['peak_memory_bytes'] / 1e6:.0f}" if used else "-",
        ]
        yield f"| {' | '.join(cells)} |"
        seconds = ""  # one command, one time


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def report(outcomes: list[Outcome]) -> str:
    """The proof, as Markdown."""
    bad = [one for one in outcomes if not one.is_good]
    said = "each ended with a verdict that is not a violation, within 5 minutes"
    if bad:
        said = "NOT PROVEN: " + ", ".join(f"{one.preset} on {one.engine}" for one in bad)
    lines = "\n".join(row for one in outcomes for row in one.rows)
    command = " ".join(["scripts/prove_presets.py", *sys.argv[1:]])
    seconds = sum(one.seconds for one in outcomes)
    return f"""# Proof: every preset, as it stands

`shoal run PRESET --engine ENGINE`, {len(outcomes)} commands: {said}.

| {" | ".join(HEAD)} |
|{"---|" * len(HEAD)}
{lines}

With acks=0 nothing is acknowledged, so nothing is proven and there is no yield. Where there are
several groups of consumers the numbers are those of the worst. Faults are in the files of the
presets.

{conditions(command, elapsed_s=seconds, packages=["pyspark"])}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["lite", "apache", "both"], default="both")
    parser.add_argument("--presets", help="which, separated by commas; all by default")
    parser.add_argument("--kafka", default="", help="versions of Apache Kafka, by commas")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    names = options.presets.split(",") if options.presets else list(presets())
    engines = ["lite", "apache"] if options.engine == "both" else [options.engine]
    outcomes = _kept(options.results)
    done = {(one.preset, one.engine) for one in outcomes}
    for name, engine, version in itertools.product(names, engines, options.kafka.split(",")):
        wanted = version if engine == "apache" and version else None
        if (name, f"{engine} {wanted}" if wanted else engine) in done:
            continue
        outcome = prove(name, engine, wanted)
        print(f"{name} on {outcome.engine}: {outcome.seconds:.0f} s", flush=True)
        print(*outcome.rows, sep="\n", flush=True)
        outcomes.append(outcome)
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report(outcomes))
    return 0 if all(one.is_good for one in outcomes) else 1


def _kept(file: Path | None) -> list[Outcome]:
    if file is None or not file.exists():
        return []
    return [Outcome(**json.loads(line)) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
