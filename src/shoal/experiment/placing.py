"""Places the workers of runs: as processes on this machine, or as tasks of Spark.

Rules:
- One Spark session is used for everything: it judges, and if the experiment names a master, its
  tasks are the workers.
- On Spark each worker needs a slot of its own while it runs. If Spark has too few slots, an error
  is raised before anything is sent.
- Workers on other machines must see the run's folder, and reach the clusters and this driver.
"""

from collections.abc import Sequence
from typing import Self

from shoal.experiment import plan
from shoal.experiment.run import WorkerLocation
from shoal.experiment.spec import ExperimentSpec, WorkersSpec
from shoal.model.errors import ConfigError
from shoal.pipeline.placement import SparkPlacement
from shoal.pipeline.session import SessionFuture


def count_slots(spec: ExperimentSpec) -> int:
    """The most workers of a run at a time; scans start when the others have ended."""
    growth = plan.growth_spec(spec)
    parts = [spec] if growth is None else [spec, growth]
    sending = sum(len(plan.producer_names(one)) + len(plan.consumer_names(one)) for one in parts)
    return max(sending, len(parts) * len(spec.clusters))


class PlacementProvider:
    """A Spark session that starts in the background, and the location of each run's workers."""

    def __init__(self, specs: Sequence[ExperimentSpec]) -> None:
        self._workers = _require_same_workers(specs)
        self._slots = max(count_slots(spec) for spec in specs)
        local_slots = self._slots if self._workers.on_spark else 0
        self.session = SessionFuture(self._workers.master or None, slots=local_slots)

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self.session.__exit__(*reason)

    def location(self) -> WorkerLocation:
        """Where the next run's workers run; waits until Spark has slots for them."""
        wanted = self._workers
        if not wanted.on_spark:
            return WorkerLocation()
        placement = SparkPlacement(self.session.result())
        placement.wait_for_executors(wanted.executors)
        placement.wait_for_slots(self._slots)
        return WorkerLocation(placement, wanted.host or placement.host, wanted.port)


def _require_same_workers(specs: Sequence[ExperimentSpec]) -> WorkersSpec:
    wanted = {spec.workers for spec in specs}
    if len(wanted) > 1:
        raise ConfigError(
            "the runs of one command need the same [workers] section, and these differ",
            remedy="do not vary [workers]: one command uses one Spark session",
        )
    return wanted.pop()
