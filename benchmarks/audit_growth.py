"""The time of an audit grows no faster than the number of messages, however they are spread.

Ours beside ours, on one Spark session that is up: 40 million messages against 2 million (neither
CPU nor time for each message may grow), and 20 million in one stream against 16 streams (at most
1.5 times the CPU and the time). CPU s/GB are CPU seconds per million messages here, MB/s thousands
of messages per second.

    python -m benchmarks.audit_growth [MESSAGES, 20 million by default]

What the driver receives and needs, by number of messages whose latencies are spread over a minute:

    python -m benchmarks.audit_growth driver [MESSAGES, 4 million by default] [STREAMS, 16]
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from benchmarks.audit_ledgers import write_run
from benchmarks.audit_session import Audits, audits
from benchmarks.harness import Case, Claim, prove

MESSAGES = 20_000_000
DRIVER_MESSAGES = 4_000_000
SPREAD_US = 60_000_000
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


def report_driver(messages: int, streams: int = STREAMS) -> int:
    """Print bytes, CPU and memory of the driver for a tenth, a quarter and all of the messages.

    More than 1,000 streams are those of several producers.
    """
    producers = max(streams // 1000, 1)
    with audits() as ours, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for count in (messages // 10, messages // 4, messages):
            run = write_run(
                *(Path(folder) / str(count), count, streams),
                producers=producers,
                spread_us=SPREAD_US,
            )
            began_s, cpu_s = time.monotonic(), time.process_time()
            usage = ours.driver_usage(run)
            took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            rmtree(run)
            memory = _memory_bytes() >> 20
            size = sum(usage.received.values())
            sys.stdout.write(
                f"{count:>11,} messages: {size:>12,} bytes to the driver"
                f" ({size / count:.3f} a message), {cpu_s:.1f} CPU s in the driver's Python,"
                f" {memory:,} MB resident, {took_s:.1f} s\n"
            )
        sys.stdout.write("\n".join(usage.lines()) + "\n")
    return 0


def _memory_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(messages: int) -> int:
    with audits() as ours, tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        return prove(CLAIM, cases(Path(folder), messages, ours))


if __name__ == "__main__":
    if sys.argv[1:2] == ["driver"]:
        numbers = [int(text) for text in sys.argv[2:]] or [DRIVER_MESSAGES]
        sys.exit(report_driver(*numbers))
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES))
