"""Places the workers of runs: as tasks of Spark, or as processes on this machine.

Rules:
- One Spark session is used for everything: its tasks are the workers, and it judges. Nothing is
  sent before it is warm.
- With workers in processes the run is judged in this process too, and no JVM is started.
- On Spark each worker needs a slot of its own while it runs. If Spark has too few slots, an error
  is raised before anything is sent.
- Every wait for Spark has a limit, and executors are awaited before the first task: on a busy
  cluster that task would wait for as long as others run.
- Workers on other machines must see the run's folder, and reach the clusters and this driver.
"""

from collections.abc import Sequence

from shoal.experiment import plan
from shoal.experiment.run import RunProgress, Watch, WorkerLocation
from shoal.experiment.spec import ExperimentSpec, WorkersSpec
from shoal.model.errors import ConfigError
from shoal.pipeline.placement import SLOTS_TIMEOUT_S, SparkPlacement
from shoal.pipeline.scans import SparkScanner
from shoal.pipeline.session import SessionFuture


def count_slots(spec: ExperimentSpec) -> int:
    """The most workers of a run at a time."""
    growth = plan.growth_spec(spec)
    parts = [spec] if growth is None else [spec, growth]
    return sum(len(plan.producer_names(one)) + len(plan.consumer_names(one)) for one in parts)


def plan_session(specs: Sequence[ExperimentSpec]) -> SessionFuture:
    """The session for these runs; as a context manager it starts and stops."""
    wanted = _require_same_workers(specs)
    return SessionFuture(
        wanted.master or None,
        slots=max(count_slots(spec) for spec in specs) if wanted.on_spark else 0,
        has_page=wanted.on_spark,
        is_lazy=not wanted.on_spark,
    )


def find_location(
    spec: ExperimentSpec,
    session: SessionFuture,
    watch: Watch,
    *,
    timeout_s: float = SLOTS_TIMEOUT_S,
) -> WorkerLocation:
    """Where the workers of a run are placed; waits until Spark is warm and has slots for them."""
    wanted, slots = spec.workers, count_slots(spec)
    if not wanted.on_spark:
        return WorkerLocation()
    watch(RunProgress(f"waiting for Spark with {slots} slots"))
    spark = session.result()
    placement = SparkPlacement(spark)
    placement.wait_for_executors(wanted.executors, timeout_s)
    placement.wait_for_slots(slots, timeout_s)
    session.wait_until_warm()
    host = wanted.host or placement.host
    return WorkerLocation(placement, host, wanted.port, SparkScanner(spark))


def _require_same_workers(specs: Sequence[ExperimentSpec]) -> WorkersSpec:
    wanted = {spec.workers for spec in specs}
    if len(wanted) > 1:
        raise ConfigError(
            "the runs of one command need the same [workers] section, and these differ",
            remedy="do not vary [workers]: one command uses one Spark session",
        )
    return wanted.pop()
