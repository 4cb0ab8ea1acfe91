"""Kill a mirror, its source and its target under a throttled copy; writes what the judges said.

    python scripts/prove_mirror.py --kills 40 --records 200000 --report docs/proofs/mirror.md

Exit code 1 if a record is lost, twice or out of order. The parts, and what exactly is judged, are
in tests/support/mirror_kills.py.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.lite.cluster import LiteCluster  # noqa: E402
from shoal.runtime.conditions import conditions  # noqa: E402
from support.mirror_kills import (  # noqa: E402
    MIRROR,
    PARTITIONS,
    SOURCE,
    TARGET,
    MirrorKills,
    Outcome,
)

BYTES_PER_RECORD = 20  # as they are stored, in batches that are mostly compressed
SECONDS_PER_KILL = 3
DELIVERIES = ("idempotent", "compare-and-append")


def report(outcomes: dict[str, Outcome], command: str, seconds: float) -> str:
    """The proof, as Markdown."""
    problems = [f"{name}: {each}" for name, one in outcomes.items() for each in one.problems]
    verdict = "NOT PROVEN" if problems else "no record lost, none twice, none out of order"
    shown = conditions(command, elapsed_s=seconds, packages=["confluent-kafka"])
    rows = "".join(
        f"| {name} | {one.records:,} | {one.kills[MIRROR]} | {one.kills[SOURCE]} "
        f"| {one.kills[TARGET]} | {len(one.problems)} |\n"
        for name, one in outcomes.items()
    )
    found = "".join(f"- {problem}\n" for problem in problems)
    return f"""# Proof: the mirror is killed, and goes on

Two clusters of three brokers with min.insync.replicas=2, {PARTITIONS} partitions, four codecs. A
throttled copy; after progress that was seen at the target, the mirror, a source leader or a target
leader is killed (kill -9): {verdict}.

| delivery | records | kills of the mirror | of source leaders | of target leaders | problems |
|---|---|---|---|---|---|
{rows}
{found}Judged by `shoal mirror verify`, and by librdkafka, which reads both topics whole.

{shown}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    choice = random.Random(options.seed)  # noqa: S311
    rate = options.records * BYTES_PER_RECORD // max(1, options.kills * SECONDS_PER_KILL)
    outcomes = {}
    for delivery in DELIVERIES:
        victims = choice.choices([MIRROR, SOURCE, TARGET], weights=[2, 1, 1], k=options.kills)
        settings = ("--delivery", delivery, "--max-bytes-per-s", str(rate))
        with (
            tempfile.TemporaryDirectory(prefix="shoal-mirror-") as folder,
            LiteCluster(3) as source,
            LiteCluster(3) as target,
        ):
            kills = MirrorKills(source, target, Path(folder), *settings)
            outcomes[delivery] = kills.run(
                "copied", options.records, victims, say, seed=options.seed
            )
    command = f"scripts/prove_mirror.py {' '.join(sys.argv[1:])}"
    text = report(outcomes, command, time.monotonic() - began)
    print(text)
    if options.report is not None:
        options.report.write_text(text)
    return 1 if any(one.problems for one in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
