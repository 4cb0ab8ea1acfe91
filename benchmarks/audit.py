"""A whole audit on Spark is faster than Polars and DuckDB doing only the classification.

20 million attempts with both logs and receipts, order metrics included, once the session is up,
on the same files, in at most 2 GiB with driver, JVM and workers. Beside that, as ratios of ours
to ours: 40 million messages against 2 million (CPU per message must not grow), and one stream of
20 million against 16 (at most 1.5 times).

In the harness's words a GB is a million messages: CPU s/GB are CPU seconds per million, MB/s
thousands of messages per second. `python -m benchmarks.audit MESSAGES` takes fewer.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from benchmarks.audit_ledgers import write_run
from benchmarks.harness import Case, Claim, Side, Work, prove
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.session import start_session, stop_session

MESSAGES = 20_000_000
STREAMS = 16
CLAIM = Claim(
    name="audit",
    sentence="An audit takes no more CPU and time than Polars or DuckDB take to classify.",
    packages=("pyspark", "pyarrow", "numpy", "polars", "duckdb"),
)


class Ours:
    """Audits on one session that is up already."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def side(self, folder: Path, messages: int) -> Side:
        return Side(f"shoal {folder.name}", lambda: self._audit(folder, messages), self._pids)

    def _audit(self, folder: Path, messages: int) -> int:
        audit_run([folder], self._session)
        return messages * 1000

    def check(self, folder: Path) -> None:
        """All three count alike."""
        found = {n: f.count for n, f in audit_run([folder], self._session).findings.items()}
        lost = [found.get(f"lost: {name}", 0) for name in ("not-mirrored", "undelivered")]
        for name in ("polars", "duckdb"):
            told = json.loads(_peer(name, folder))
            assert [told["not_mirrored"], told["undelivered"]] == lost, (name, told, lost)

    def _pids(self) -> list[int]:
        gateway = SparkContext._gateway  # noqa: SLF001 - pyspark does not tell its JVM's number
        return [gateway.proc.pid] if gateway is not None else []


def _peer(name: str, folder: Path) -> str:
    command = [sys.executable, "-m", "benchmarks.audit_peers", name, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def peer_side(name: str, folder: Path, messages: int) -> Side:
    def run() -> Work:
        return Work(messages * 1000, json.loads(_peer(name, folder))["wall_s"])

    return Side(name, run)


def cases(folder: Path, messages: int, ours: Ours) -> Iterator[Case]:
    plain = write_run(folder / f"{STREAMS}-streams", messages, STREAMS)
    ours.check(plain)
    for name in ("polars", "duckdb"):
        yield Case(
            name,
            ours=ours.side(plain, messages),
            theirs=peer_side(name, plain, messages),
            conditions={"messages": messages, "streams": STREAMS, "rows": 4 * messages},
            least_speed=1.0,
            most_memory_mib=2048,
        )
    one = write_run(folder / "one-stream", messages, 1)
    yield Case(
        "one stream against 16",
        ours=ours.side(one, messages),
        theirs=ours.side(plain, messages),
        bar=1 / 1.5,
    )
    small = write_run(folder / "small", messages // 10, STREAMS)
    large = write_run(folder / "large", 2 * messages, STREAMS)
    yield Case(
        "twice as many against a tenth",
        ours=ours.side(large, 2 * messages),
        theirs=ours.side(small, messages // 10),
    )


def main(messages: int) -> int:
    session = start_session("local[2]")
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            return prove(CLAIM, cases(Path(folder), messages, Ours(session)))
    finally:
        stop_session(session)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
