"""The time of an audit grows no faster than the number of messages, however they are spread.

Ours beside ours, on one Spark session that is up: 40 million messages against 2 million (neither
CPU nor time for each message may grow), and 20 million in one stream against 16 streams (at most
1.5 times the CPU and the time). CPU s/GB are CPU seconds per million messages here, MB/s thousands
of messages per second.

    python -m benchmarks.audit_growth [MESSAGES, 20 million by default]
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from benchmarks.audit_ledgers import write_run
from benchmarks.audit_session import Audits, audits
from benchmarks.harness import Case, Claim, prove

MESSAGES = 20_000_000
STREAMS = 16
MOST_FOR_ONE_STREAM = 1.5
CLAIM = Claim(
    name="audit_growth",
    sentence="An audit of 40 million messages takes no more for each of them than one of 2 million,"
    " and one stream at most 1.5 times as much as 16.",
    packages=("pyspark", "pyarrow", "numpy"),
)


def cases(folder: Path, messages: int, ours: Audits) -> Iterator[Case]:
    spread = write_run(folder / f"{STREAMS}-streams", messages, STREAMS)
    one = write_run(folder / "one-stream", messages, 1)
    yield Case(
        "one stream against 16",
        ours=ours.side(one, messages),
        theirs=ours.side(spread, messages),
        conditions={"messages": messages},
        bar=1 / MOST_FOR_ONE_STREAM,
        least_speed=1 / MOST_FOR_ONE_STREAM,
    )
    rmtree(one)
    rmtree(spread)
    few, many = messages // 10, 2 * messages
    yield Case(
        "many against few",
        ours=ours.side(write_run(folder / "many", many, STREAMS), many),
        theirs=ours.side(write_run(folder / "few", few, STREAMS), few),
        conditions={"many": many, "few": few, "streams": STREAMS},
        least_speed=1.0,
    )


def main(messages: int) -> int:
    with audits() as ours, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return prove(CLAIM, cases(Path(folder), messages, ours))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
