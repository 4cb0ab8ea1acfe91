"""Plays a run with planted findings beside `shoal audit --follow`, and writes a page.

    python scripts/prove_follow.py [--seconds 600] [--findings 20] [--report docs/proofs/follow.md]

The run is written in real time by the writers of real runs (`tests/support/audit/live_run.py`),
with late messages, rebalances and aborted transactions, which are no findings. For each planted
finding the page has the time from the commit of its last row, from which on it is certain, until it
is in the event stream of the run. Exit code 1 if one is missing, late by more than 5 s, or if
anything else was raised, or if the audit at the end does not confirm all.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.audit.follow import CERTAIN  # noqa: E402
from shoal.model.events import FindingSeen  # noqa: E402
from shoal.runtime.conditions import code_version, conditions  # noqa: E402
from shoal.telemetry.events import EventReader  # noqa: E402
from support.audit.live_run import EXPECTED, PER_SECOND, LiveRun, Planted  # noqa: E402

LIMIT_S = 5.0
WATCH_EVERY_S = 0.05


class Watcher(threading.Thread):
    """Reads the event stream, and notes when each count of a finding appeared."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[int, str, int]] = []
        self._reader = EventReader(run_dir)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            for event in self._reader.read().events:
                if isinstance(event, FindingSeen) and event.is_certain:
                    now_us = time.time_ns() // 1000
                    self.seen.append((now_us, event.finding, event.count))
            self._ended.wait(WATCH_EVERY_S)

    def end(self) -> None:
        self._ended.set()
        self.join()
        self._reader.close()

    def delay_s(self, planted: Planted) -> float | None:
        """How long after a planting all that it makes certain was raised; None if never."""
        delays = []
        for finding in EXPECTED[planted.planting]:
            count = planted.counts[finding.value]
            at = [t for t, name, seen in self.seen if name == finding.value and seen >= count]
            if not at:
                return None
            delays.append((min(at) - planted.committed_us) / 1e6)
        return max(0.0, *delays)


def play(run_dir: Path, seconds: int, findings: int) -> tuple[list[Planted], Watcher, str]:
    step = (seconds - 10) // findings
    names = islice(cycle(EXPECTED), findings)
    plantings = {5 + number * step: name for number, name in enumerate(names)}
    planted: list[Planted] = []
    command = [sys.executable, "-m", "shoal", "audit", "--follow", str(run_dir), "--output", "json"]
    run = LiveRun(run_dir, seconds, plantings)
    watcher = Watcher(run_dir)
    watcher.start()
    with tempfile.TemporaryFile("w+") as output:
        following: list[subprocess.Popen[str]] = []

        def on_planted(one: Planted) -> None:
            planted.append(one)
            print(f"planted {one.planting}", file=sys.stderr)

        def start_follower() -> subprocess.Popen[str]:
            return subprocess.Popen(command, stdout=output, text=True)

        async def play_and_follow() -> None:
            playing = asyncio.create_task(run.play(on_planted))
            await run.is_begun.wait()
            following.append(start_follower())
            await playing

        asyncio.run(play_and_follow())
        following[0].wait()
        watcher.end()
        output.seek(0)
        return planted, watcher, output.read()


def final_counts(output: str) -> dict[str, int]:
    """The counts of the audit at the end."""
    result = json.loads(output)
    [group] = result["groups"].values()
    names = {finding.value for finding in CERTAIN}
    return {name: found["count"] for name, found in group["findings"].items() if name in names}


def page(
    planted: Sequence[Planted],
    delays: Sequence[float | None],
    raised: Mapping[str, int],
    final: Mapping[str, int],
) -> str:
    rows = [
        f"| {number} | {one.planting} | {', '.join(f.value for f in EXPECTED[one.planting])} |"
        f" {'never' if delay is None else f'{delay:.1f}'} |"
        for number, (one, delay) in enumerate(zip(planted, delays, strict=True), 1)
    ]
    names = sorted({*raised, *final})
    counts = [f"| {name} | {raised.get(name, 0)} | {final.get(name, 0)} |" for name in names]
    about = (
        f"A run of two producers ({PER_SECOND} messages a second each, one of them in"
        " transactions) and two consumers is written in real time, with messages that arrive"
        " 8 s late, a rebalance with repeated deliveries every 20 s and aborted transactions."
        " `shoal audit --follow` judges it meanwhile. The delay is the time from the commit"
        " of the last row of a finding until it is in the event stream."
    )
    return "\n".join(
        [
            "# Proof: findings are raised while a run runs",
            "",
            about,
            "",
            "| | planted | findings | delay, s |",
            "|---|---|---|---|",
            *rows,
            "",
            "| finding | raised while it ran | audit at the end |",
            "|---|---|---|",
            *counts,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--findings", type=int, default=20)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    code, began_s = code_version("src", "scripts", "tests/support"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        planted, watcher, output = play(Path(folder) / "run", given.seconds, given.findings)
    delays = [watcher.delay_s(one) for one in planted]
    raised: dict[str, int] = {}
    for _, name, count in watcher.seen:
        raised[name] = max(count, raised.get(name, 0))
    final = final_counts(output)
    text = page(planted, delays, raised, final)
    command = (
        f"python scripts/prove_follow.py --seconds {given.seconds} --findings {given.findings}"
    )
    text += "\n" + conditions(command, elapsed_s=time.monotonic() - began_s, code=code)
    print(text)
    if given.report is not None:
        given.report.write_text(text + "\n", encoding="utf-8")
    is_proven = raised == final == planted[-1].counts
    is_proven &= all(delay is not None and delay <= LIMIT_S for delay in delays)
    print("proven" if is_proven else "not proven", file=sys.stderr)
    return 0 if is_proven else 1


if __name__ == "__main__":
    sys.exit(main())
