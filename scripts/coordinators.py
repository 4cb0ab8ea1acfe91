"""Kill the coordinators of groups and transactions under load; write the verdict.

    python scripts/coordinators.py --kills 50 --report docs/proofs/coordinators.md

Exit code 1 if anything that was committed is lost or incomplete. The implementation, and what
exactly is judged, are in tests/support/coordinator/kills.py.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.runtime.conditions import conditions  # noqa: E402
from support.coordinator.kills import (  # noqa: E402
    ABORT_EVERY,
    PARTITIONS,
    RATE_PER_S,
    READERS,
    CoordinatorKills,
    Outcome,
)


def report(outcome: Outcome, command: str) -> str:
    """The proof, as Markdown."""
    is_proven = not outcome.problems
    verdict = "nothing that was committed was lost or half applied" if is_proven else "NOT PROVEN"
    found = "".join(f"- {problem}\n" for problem in outcome.problems)
    found += "\n" if found else ""
    shown = conditions(command, elapsed_s=outcome.seconds, packages=["confluent-kafka"])
    return f"""# Proof: groups and transactions survive the death of their coordinators

Three brokers with min.insync.replicas=2; a group of {READERS} consumers reads {PARTITIONS}
partitions and commits; a transactional producer copies them, with its group's offsets, and aborts
every {ABORT_EVERY}th transaction on purpose. {outcome.group_kills} times the group's coordinator
was killed (kill -9), and {outcome.transaction_kills} times the producer's: {verdict}.

| | |
|---|---|
| records in the source, at {RATE_PER_S} a second | {outcome.records:,} |
| commits acknowledged to the group | {outcome.commits:,} |
| transactions committed, aborted | {outcome.transactions:,}, {outcome.aborts:,} |
| records in the copy, read committed | {outcome.copied:,} |
| times that the producer had to be replaced | {outcome.restarts} |
| until all partitions had new commits after a kill | {_spread(outcome.group_pauses_s)} |
| until a transaction was committed after a kill | {_spread(outcome.transaction_pauses_s)} |

{found}What was judged: an offset whose commit was acknowledged is never followed by a lower one,
asked for right after each kill and each restart; the copy has exactly the records below the
copier's committed offsets, each once and in order; of each transaction all records or none, of
aborted ones none, and all of those whose commit was acknowledged. All clients are librdkafka.

{shown}
"""


def _spread(pauses_s: list[float]) -> str:
    return f"median {statistics.median(pauses_s):.1f} s, at most {max(pauses_s):.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="shoal-coordinators-"))
    outcome = CoordinatorKills(folder).run(options.kills, say)
    if outcome.problems:
        print(f"see {folder}")
    else:
        shutil.rmtree(folder)
    text = report(outcome, f"scripts/coordinators.py {' '.join(sys.argv[1:])}")
    print(text)
    if options.report is not None:
        options.report.write_text(text)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
