"""A whole audit on Spark is no slower than Polars and DuckDB doing only the classification.

20 million attempts with both logs and receipts, once the session is up, on the same files. The
audit finds everything: order, duplicates, latencies, pictures; they only count the messages that
are missing in the target log and those that were not delivered. Everyone must find what is planted
(`audit_ledgers`). Memory is the PSS of the whole tree, JVM and workers included: at most half of
theirs. CPU s/GB are CPU seconds per million messages here, MB/s thousands of
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
from benchmarks.memory import PeakPss

MESSAGES = 20_000_000
STREAMS = 16
CLAIM = Claim(
    name="audit",
    sentence="An audit, which finds everything, takes no more CPU and time than Polars or DuckDB"
    " take only to count what is missing, and at most half of their memory.",
    packages=("pyspark", "pyarrow", "numpy", "polars", "duckdb"),
)


def peer_side(name: str, folder: Path, messages: int) -> Side:
    """Run in a process of its own, which reports its time without its start."""
    command = [sys.executable, "-m", "benchmarks.audit_peers", name, str(folder)]

    def run() -> Work:
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
            PeakPss(process.pid) as memory,
        ):
            answer, _ = process.communicate()
        assert process.returncode == 0, (name, process.returncode)
        output = json.loads(answer)
        found = {name: output[name] for name in count_losses(messages)}
        assert found == count_losses(messages), (name, found)
        return Work(messages * BYTES_PER_MESSAGE, output["wall_s"], memory.peak_bytes)

    return Side(name, run, measures_memory=True)


def cases(folder: Path, messages: int, ours: Audits) -> Iterator[Case]:
    run = write_run(folder / f"{STREAMS}-streams", messages, STREAMS)
    for name in ("polars", "duckdb"):
        yield Case(
            name,
            ours=ours.side_with_memory(run, messages),
            theirs=peer_side(name, run, messages),
            conditions={"messages": messages, "streams": STREAMS, "rows": 4 * messages},
            least_speed=1.0,
            most_memory_share=0.5,
            needs_every_pair=True,
        )


def main(messages: int) -> int:
    with audits() as ours, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return prove(CLAIM, cases(Path(folder), messages, ours))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
