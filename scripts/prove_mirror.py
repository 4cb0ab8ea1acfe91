"""Kill a mirror, its source and its target during a throttled copy; write the verdicts.

    python scripts/prove_mirror.py --engine lite --kills 200 --report docs/proofs/mirror.md
    python scripts/prove_mirror.py --engine apache --mode transactional --kills 20 --report …
    python scripts/prove_mirror.py --engine apache-lite --report …

`apache-lite` copies from Apache Kafka to Kafka Lite, since only Kafka Lite has compare-and-append.
One run for each mode; `--mode` selects one, and may be repeated. The row of a finished run replaces
the older row of the same engine and mode in the report; other rows stay.

Exit code 1 if a record is lost, duplicated or out of order. The implementation, and what exactly is
judged, are in tests/support/mirror/kills.py.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND  # noqa: E402
from shoal.runtime.conditions import code_version, conditions  # noqa: E402
from shoal.systems.clusters import make_cluster  # noqa: E402
from support.mirror.kills import (  # noqa: E402
    MIRROR,
    SOURCE,
    TARGET,
    VICTIMS,
    WORKER,
    MirrorKills,
    Outcome,
)

BROKERS = 3
WORKERS = 2
# Source and target.
ENGINES = {
    "lite": ("lite", "lite"),
    "apache": ("apache", "apache"),
    "apache-lite": ("apache", "lite"),
}
MODES = {
    "lite": ("idempotent", "transactional", "compare-and-append"),
    "apache": ("idempotent", "transactional"),
    "apache-lite": ("compare-and-append",),
}
KILLS = {"lite": 200, "apache": 20, "apache-lite": 20}
# A broker of Apache Kafka takes longer to restart.
SECONDS_PER_KILL = {"lite": 3.0, "apache": 8.0, "apache-lite": 5.0}
PROPERTIES: dict[str, dict[str, str]] = {"lite": {}, "apache": {"min.insync.replicas": "2"}}
# Three replicas of Apache Kafka on a small machine accept some hundred batches a second.
# Between stretches of large ones come stretches of tiny ones.
BATCH_RECORDS = {"lite": 40, "apache": 100}
# Of the starts of the mirror, one after the other: each kill of it changes the depth.
DEPTHS = ("auto", "raw", "deep", "auto", "deep", "raw")
# For brokers that run for minutes and are killed: little memory, and a fast start.
JVM_OPTIONS = "-Xms64m -Xmx384m -XX:TieredStopAtLevel=1"

HEAD = f"""# Proof: the mirror survives kills

Two clusters of {BROKERS} brokers, replication factor {BROKERS}, min.insync.replicas 2, three
partitions, four codecs. A throttled copy by `shoal mirror run --workers {WORKERS}`, whose starts
have another `--depth` each. Stretches of tiny batches and of large ones follow each other, so that
`--depth auto` changes between deep and raw while processes are killed (switches, as far as the
status showed them; compare-and-append is always raw; none elsewhere is a problem). After progress
that a reader at the target has seen, a worker of the mirror, the whole mirror, a source leader or a
target leader is killed (kill -9), chosen at random. A problem is a record that is lost, duplicated
or out of order. Judged by librdkafka, which reads the copy with read_committed and knows what was
sent, and by `shoal mirror verify`, which compares both logs batch by batch. The four numbers are
kills; `apache-lite` copies from Apache Kafka to Kafka Lite.

| brokers | delivery | records | worker | mirror | source | target | switches | problems | date \
| code | |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
_CELLS = 14  # of a row that is split at its separators


def row(engine: str, mode: str, outcome: Outcome, *, code: str, seconds: float) -> str:
    kills = " | ".join(str(outcome.kills[victim]) for victim in (WORKER, MIRROR, SOURCE, TARGET))
    return (
        f"| {engine} | {mode} | {outcome.records:,} | {kills} "
        f"| {outcome.switches} | {len(outcome.problems)} "
        f"| {datetime.now(UTC):%Y-%m-%d} | {code} | {seconds / 60:.1f} min |"
    )


def write_report(path: Path, rows: list[str], command: str, seconds: float) -> None:
    """Write the proof as Markdown: these rows, and the existing rows of other runs."""
    kept: dict[str, str] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith(tuple(f"| {engine} |" for engine in ENGINES)):
                kept[_key(line)] = _with_switches(line)
    kept |= {_key(line): line for line in rows}
    table = "\n".join(kept[key] for key in sorted(kept, reverse=True))
    shown = conditions(command, elapsed_s=seconds, packages=["confluent-kafka"])
    path.write_text(f"{HEAD}{table}\n\nThe last run:\n\n{shown}\n")


def _with_switches(line: str) -> str:
    """A row; older ones did not count the switches."""
    cells = line.split("|")
    if len(cells) < _CELLS:
        cells.insert(_CELLS - 6, " not counted ")
    return "|".join(cells)


def _key(line: str) -> str:
    return "|".join(line.split("|")[1:3])


def prove(
    engine: str, mode: str, options: argparse.Namespace, say: Callable[[str], None]
) -> Outcome:
    """Run one copy with kills, between two new clusters."""
    kills: int = options.kills or KILLS[engine]
    choice = random.Random(options.seed)  # noqa: S311
    victims = choice.choices(VICTIMS, k=kills)
    first, second = ENGINES[engine]
    with (
        tempfile.TemporaryDirectory(prefix="shoal-mirror-") as folder,
        make_cluster(first, brokers=BROKERS, properties=PROPERTIES[first]) as source,
        make_cluster(second, brokers=BROKERS, properties=PROPERTIES[second]) as target,
    ):
        say("both clusters are up")
        run = MirrorKills(
            source,
            target,
            Path(folder),
            *("--delivery", mode, "--workers", str(WORKERS)),
            batch_records=BATCH_RECORDS[first],
            depths=DEPTHS,
            alternates=True,
        )
        outcome = run.run(
            "copied",
            options.records,
            victims,
            say,
            seed=options.seed,
            seconds=kills * SECONDS_PER_KILL[engine],
        )
    if mode != COMPARE_AND_APPEND and not outcome.switches:
        outcome.problems.append("no partition changed its depth: the proof did not test that")
    return outcome


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(MODES), default="lite")
    parser.add_argument("--mode", action="append", help="one delivery; may be repeated")
    parser.add_argument("--kills", type=int, default=0, help="200 on lite, 20 on apache")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    options.mode = options.mode or list(MODES[options.engine])
    for mode in options.mode:
        if mode not in MODES[options.engine]:
            parser.error(f"{options.engine} has no {mode}: {', '.join(MODES[options.engine])}")
    return options


def main() -> int:
    options = _options()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    os.environ.setdefault("KAFKA_HEAP_OPTS", JVM_OPTIONS)
    code = code_version("src", "scripts", "tests/support").removeprefix("commit ")
    command = f"scripts/prove_mirror.py {' '.join(sys.argv[1:])}"
    has_problems = False
    for mode in options.mode:
        say(f"{options.engine}, {mode}")
        mode_began = time.monotonic()
        outcome = prove(options.engine, mode, options, say)
        seconds = time.monotonic() - mode_began
        line = row(options.engine, mode, outcome, code=code, seconds=seconds)
        print(line)
        for problem in outcome.problems:
            print(f"- {problem}")
        has_problems |= bool(outcome.problems)
        if options.report is not None:
            write_report(options.report, [line], command, time.monotonic() - began)
    return 1 if has_problems else 0


if __name__ == "__main__":
    sys.exit(main())
