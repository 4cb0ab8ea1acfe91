"""Inject random faults into three brokers under load, for each profile; write the verdicts.

    python scripts/chaos.py --seconds 300 --report docs/proofs/chaos.md
    python scripts/chaos.py --profile strict --seed 7 --seconds 60

Kills, stops, pauses, restarts, cut links, crashes of everything and lost disks come in an order
that depends only on the seed. Exit code 1 if a judge found a problem. The implementation is in
tests/support/lite/chaos.py and storm.py; the second judge is scripts/second_judge.py.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SECOND = ("acked", "read", "missing", "twice", "disordered")
WITH_QUORUM = ", 3 controllers"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.model.errors import ShoalError  # noqa: E402 - found by the path above
from shoal.runtime.conditions import conditions  # noqa: E402
from support.lite.chaos import BROKERS, DISKS, PARTITIONS, RATE_PER_S, Chaos, Outcome  # noqa: E402

KINDS = ["default", "strict", "available", f"default{WITH_QUORUM}"]


def play(kind: str, seed: int, seconds: float) -> Outcome:
    """Do one run in a folder of its own, which is deleted unless a problem was found."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    began = time.monotonic()
    profile = kind.removesuffix(WITH_QUORUM)

    def say(text: str) -> None:
        print(f"{kind} {time.monotonic() - began:7.2f} s  {text}", flush=True)

    chaos = Chaos(profile, seed, folder, has_quorum=kind != profile)
    outcome = chaos.outcome
    try:
        chaos.run(seconds, say)
    except (AssertionError, OSError, ShoalError, subprocess.SubprocessError) as error:
        outcome.failure = repr(error)
    outcome.profile = kind
    if outcome.problems():
        print(f"{kind}: {outcome.problems()}; see {folder}")
    else:
        shutil.rmtree(folder)
    return outcome


def report(outcomes: list[Outcome], elapsed_s: float) -> str:
    """The proof, as Markdown."""
    is_proven = not any(outcome.problems() for outcome in outcomes)
    what = (
        "nothing acknowledged was lost, duplicated or out of order" if is_proven else "NOT PROVEN"
    )
    are_equal = all(outcome.are_replicas_equal for outcome in outcomes)
    rows = "\n".join(map(_row, outcomes))
    acts = "\n".join(f"- {outcome.profile}: {_acts(outcome)}" for outcome in outcomes)
    disks = ", ".join(f"{count} in {profile}" for profile, count in DISKS.items())
    shown = conditions(
        " ".join(["scripts/chaos.py", *sys.argv[1:]]),
        elapsed_s=elapsed_s,
        more={"load": f"{RATE_PER_S} messages/s of 200 B, and what librdkafka sends besides"},
        packages=["confluent-kafka"],
    )
    return f"""# Proof: random faults in three brokers

{BROKERS} brokers, two topics of {PARTITIONS} partitions with {BROKERS} replicas, two idempotent
producers with acks=all, {outcomes[0].seconds / 60:g} minutes for each profile: {what}.

| profile | faults | audit: acked, delivered | second judge: acked, read, lost, twice, disordered |
|---|---|---|---|
{rows}

The first judge is the audit of this project, over the ledgers of a producer and a consumer and a
scan of the log; the second is `scripts/second_judge.py`, which uses confluent-kafka only. At the
end all replicas of each partition were {"" if are_equal else "NOT "}equal, byte by byte.

What was done:

{acts}

*wipe* is kill -9, the broker's folder deleted, and a restart with nothing; at most so many brokers
at once are without all their data: {disks}.
*crash* is kill -9 of the supervisor, with its controller, and of all other nodes at once, and a
start from the folder. With 3 controllers these are processes, and harmed like brokers.

{shown}
"""


def _row(outcome: Outcome) -> str:
    second = outcome.second
    metrics = outcome.first.metrics if outcome.first is not None else None
    audited = "-" if metrics is None else f"{metrics.ok:,}, {metrics.delivered:,}"
    cells = (
        outcome.profile,
        f"{sum(outcome.acts.values()):,}",
        audited,
        ", ".join(str(second.get(name)) for name in _SECOND),
    )
    return f"| {' | '.join(cells)} |"


def _acts(outcome: Outcome) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(outcome.acts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", choices=KINDS, action="append")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="number of clusters at once")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    kinds = options.profile or KINDS
    began_s = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        played = pool.map(lambda kind: play(kind, options.seed, options.seconds), kinds)
        outcomes = list(played)
    text = report(outcomes, time.monotonic() - began_s)
    print(text)
    if options.report is not None:
        options.report.write_text(text)
    return 1 if any(outcome.problems() for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
