"""Where `shoal mirror run` copies: in this process, in worker processes, or in Spark tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.cli.shared import console

if TYPE_CHECKING:
    from shoal.mirror.flow import MakeCopyBackend

SPARK_WORKERS: Final = 2


@contextmanager
def open_copy_backend(
    workers: int | None, master: str | None, *, flows: int = 1
) -> "Iterator[MakeCopyBackend]":
    """Yield a factory of copy backends; Spark, if used, is stopped at the end of the block."""
    if master is not None:
        with _on_spark(workers or SPARK_WORKERS, master, flows) as make_backend:
            yield make_backend
    elif workers is not None:
        from shoal.workers.mirror_team import MirrorTeam
        from shoal.workers.processes import ProcessPlacement

        yield partial(MirrorTeam, placement=ProcessPlacement(), workers=workers)
    else:
        from shoal.mirror.run.copier import Copier

        yield Copier


@contextmanager
def _on_spark(workers: int, master: str, flows: int) -> "Iterator[MakeCopyBackend]":
    from shoal.pipeline.placement import SparkPlacement
    from shoal.pipeline.session import start_session, stop_session
    from shoal.workers.mirror_team import MirrorTeam

    slots = workers * flows
    console.say(f"starting Spark on {master}")
    session = start_session(master, slots=slots)
    try:
        placement = SparkPlacement(session)
        placement.wait_for_slots(slots)
        yield partial(MirrorTeam, placement=placement, workers=workers, host=placement.host)
    finally:
        stop_session(session)
