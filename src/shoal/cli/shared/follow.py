"""Findings while a run runs: for `shoal audit --follow`, and as a child process of `shoal run`.

The child has a lower priority than the run, and ends when its standard input does: it never
outlives the run, and its last step follows the last line of the ledgers.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from shoal.cli.shared import console
from shoal.model.events import FindingSeen

if TYPE_CHECKING:
    from shoal.pipeline.session import SessionFuture

StartSpark = Callable[[], "SessionFuture"]

_NICE: Final = 10
_END_PATIENCE_S: Final = 60.0
_STATE_EVERY_S: Final = 0.2


def follow_to_the_end(
    run_dir: Path, start_spark: StartSpark, *, is_child: bool, output: str = ""
) -> None:
    """Report what is certain until the run is over; beside JSON, on standard error.

    `start_spark` gives the session of the whole command: it is asked only if the run is large.
    """
    from shoal.pipeline.follow import follow_run

    if is_child:
        os.nice(_NICE)
    is_over = _is_input_closed if is_child else _wait_for_end(run_dir)
    follow_run(
        run_dir,
        is_over=is_over,
        report=partial(_report, output),
        notify=console.err.print,
        large_runner=_spark_runner(start_spark),
    )


def _report(output: str, event: FindingSeen) -> None:
    where = ", ".join(f"{name} {value}" for name, value in event.witness.items())
    shown = console.err if output == "json" else console.out
    shown.print(f"certain: {event.count} {event.finding} ({where})", markup=False)
    shown.file.flush()


def _is_input_closed(wait_s: float) -> bool:
    """Wait, at most until the parent closes the pipe."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def _wait_for_end(run_dir: Path) -> Callable[[float], bool]:
    from shoal.experiment.runs import summarise

    def is_over(wait_s: float) -> bool:
        deadline_s = time.monotonic() + wait_s
        while summarise(run_dir).state == "running":
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, _STATE_EVERY_S))
        return True

    return is_over


def _spark_runner(start_spark: StartSpark) -> Callable[[], Any]:
    """Return what gives the runner of a run that has become large."""

    def get() -> Any:
        from shoal.pipeline.cells import run_on

        return partial(run_on, start_spark().result())

    return get


@contextmanager
def following(run_dir: Path, *, is_wanted: bool) -> Iterator[None]:
    """Report findings of a run that this process makes, by a child process."""
    if not is_wanted:
        yield
        return
    from shoal.runtime.tasks import log_only, start_thread

    child = subprocess.Popen(
        [sys.executable, "-m", "shoal", "audit", "--follow", "--early-only", str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None  # noqa: S101 - by the call above
    assert child.stdout is not None  # noqa: S101
    reading = start_thread("findings", lambda: _repeat(child.stdout), on_failure=log_only)
    try:
        yield
    finally:
        child.stdin.close()
        try:
            child.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        reading.join()
        child.stdout.close()


def _repeat(lines: IO[str] | None) -> None:
    for line in lines or ():
        console.say(line.rstrip("\n"), "bold red")
