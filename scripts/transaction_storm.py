"""Kill the coordinators of a transactional copy repeatedly; write the verdict.

    python scripts/transaction_storm.py --kills 50 --report docs/proofs/transactions.md

Exit code 1 if anything committed is lost, duplicated, incomplete or out of order. The
implementation is in tests/support/coordinator/transaction_storm.py.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.lite.cluster import LiteCluster  # noqa: E402
from shoal.runtime.conditions import conditions  # noqa: E402
from support.coordinator.transaction_storm import (  # noqa: E402
    AT_ONCE,
    PARTITIONS,
    StormOutcome,
    TransactionStorm,
)


def report(outcome: StormOutcome, seconds: float, seed: int) -> str:
    """The proof, as Markdown."""
    kills = outcome.kills["transaction"] + outcome.kills["group"]
    verdict = "NOT PROVEN: " + "; ".join(outcome.problems)
    if not outcome.problems:
        verdict = "nothing committed was lost, duplicated, incomplete or out of order"
    command = " ".join(["scripts/transaction_storm.py", *sys.argv[1:]])
    shown = conditions(command, elapsed_s=seconds, more={"seed": seed})
    return f"""# Proof: transactions survive their coordinators

Three brokers; a producer of this project copies numbers by the second protocol of transactions,
{AT_ONCE} to each of {PARTITIONS} partitions and the next number as a group's offset in one. Its
coordinators were killed (kill -9) {kills} times in {seconds:.0f} s: {verdict}.

| | |
|---|---|
| kills of the transaction's coordinator | {outcome.kills["transaction"]} |
| kills of the group's coordinator | {outcome.kills["group"]} |
| transactions acknowledged as committed | {outcome.committed} |
| transactions aborted | {outcome.aborted} |
| sessions lost, and replaced by one with the same id | {outcome.lost_sessions} |
| numbers in every partition, and the group's next | {outcome.last_number} |

{shown}
"""


async def play(kills: int, seed: int) -> StormOutcome:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.2f} s  {text}", flush=True)

    with LiteCluster(brokers=3) as cluster:
        return await TransactionStorm(cluster, seed).run(kills, say)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    outcome = asyncio.run(play(arguments.kills, arguments.seed))
    text = report(outcome, time.monotonic() - began, arguments.seed)
    print(text)
    if arguments.report is not None:
        arguments.report.write_text(text)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
