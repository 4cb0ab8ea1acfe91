"""Where the workers of some runs are placed: processes of this machine, or tasks of a Spark.

Rules:
- One session serves all: it judges, and if the experiment names a master its tasks are the workers.
- On Spark each worker needs a slot of its own for as long as it runs. Too few slots are told
  before anything is sent.
- Workers elsewhere must see the run's folder, and reach the clusters and this driver.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from shoal.experiment import plan
from shoal.experiment.run import Place
from shoal.experiment.spec import ExperimentSpec, WorkersSpec
from shoal.model.errors import ConfigError
from shoal.pipeline.placement import SparkPlacement
from shoal.pipeline.session import SessionFuture


def slots_of(spec: ExperimentSpec) -> int:
    """How many workers of a run are there at once; scans begin when the others have ended."""
    newcomers = plan.later(spec)
    crews = [spec] if newcomers is None else [spec, newcomers]
    sending = sum(len(plan.producer_names(one)) + len(plan.consumer_names(one)) for one in crews)
    return max(sending, len(crews) * len(spec.clusters))


class Placing:
    """A session that starts in the background, and the place of each run's workers."""

    def __init__(self, specs: Sequence[ExperimentSpec]) -> None:
        self._workers = _agreed(specs)
        self._slots = max(slots_of(spec) for spec in specs)
        local_slots = self._slots if self._workers.on_spark else 0
        self.session = SessionFuture(self._workers.master or None, slots=local_slots)

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.__exit__(kind, error, traceback)

    def place(self) -> Place:
        """Where the next run's workers go; waits until Spark has room for them."""
        wanted = self._workers
        if not wanted.on_spark:
            return Place()
        placement = SparkPlacement(self.session.result())
        placement.wait_for_executors(wanted.executors)
        placement.wait_for_slots(self._slots)
        return Place(placement, wanted.host or placement.host, wanted.port)


def _agreed(specs: Sequence[ExperimentSpec]) -> WorkersSpec:
    wanted = {spec.workers for spec in specs}
    if len(wanted) > 1:
        raise ConfigError(
            "some runs want their workers in one place and some in another",
            remedy="one command has one Spark: leave [workers] out of what varies",
        )
    return wanted.pop()
