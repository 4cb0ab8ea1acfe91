"""A whole audit on Spark is faster than Polars and DuckDB doing only the classification.

20 million attempts with both logs and receipts, order metrics included, once the session is up,
on the same files, in at most 2 GiB with driver, JVM and workers. Everyone must find what is
planted (`audit_ledgers`). CPU s/GB are CPU seconds per million messages here, MB/s thousands of
messages per second.

    python -m benchmarks.audit [MESSAGES]
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.audit_ledgers import count_losses, write_run
from benchmarks.audit_session import BYTES_PER_MESSAGE, Audits, audits
from benchmarks.harness import Case, Claim, Side, Work, prove

MESSAGES = 20_000_000
STREAMS = 16
CLAIM = Claim(
    name="audit",
    sentence="An audit takes no more CPU and time than Polars or DuckDB take to classify.",
    packages=("pyspark", "pyarrow", "numpy", "polars", "duckdb"),
)


def peer_side(name: str, folder: Path, messages: int) -> Side:
    """Run in a process of its own, which reports its time without its start."""
    command = [sys.executable, "-m", "benchmarks.audit_peers", name, str(folder)]

    def run() -> Work:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        output = json.loads(done.stdout)
        found = {name: output[name] for name in count_losses(messages)}
        assert found == count_losses(messages), (name, found)
        return Work(messages * BYTES_PER_MESSAGE, output["wall_s"])

    return Side(name, run)


def cases(folder: Path, messages: int, ours: Audits) -> Iterator[Case]:
    run = write_run(folder / f"{STREAMS}-streams", messages, STREAMS)
    for name in ("polars", "duckdb"):
        yield Case(
            name,
            ours=ours.side(run, messages),
            theirs=peer_side(name, run, messages),
            conditions={"messages": messages, "streams": STREAMS, "rows": 4 * messages},
            least_speed=1.0,
            most_memory_mib=2048,
        )


def main(messages: int) -> int:
    with audits() as ours, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return prove(CLAIM, cases(Path(folder), messages, ours))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
