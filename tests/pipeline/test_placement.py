"""Workers as tasks of Spark: the same run as in processes, and correct when a task dies."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.experiment.plan import Addresses
from shoal.experiment.run import RunProgress, Watch, WorkerLocation, run_workload
from shoal.experiment.spec import ExperimentSpec
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure
from shoal.model.findings import LOST, Finding, Verdict
from shoal.model.result import Result
from shoal.pipeline.messages import write_messages
from shoal.pipeline.placement import SparkPlacement
from support.audit.ledgers import clean_run
from support.experiment.experiments import single

pytestmark = pytest.mark.spark


def bench(messages: int, rate_per_s: float) -> ExperimentSpec:
    return single(
        "bench",
        messages,
        rate_per_s,
        partitions=2,
        configs={"message.timestamp.type": "LogAppendTime"},
        drain_timeout_s=60.0,
    )


def run_on(
    session: SparkSession,
    cluster: LiteCluster,
    experiment: ExperimentSpec,
    folder: Path,
    watch: Watch,
) -> Result:
    placement = SparkPlacement(session)
    run_workload(
        experiment,
        addresses=Addresses(cluster.bootstrap),
        run_dir=folder,
        watch=watch,
        location=WorkerLocation(placement, placement.host),
    )
    return audit(open_ledger([folder]))


def test_a_run_on_spark_has_four_times_of_every_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LiteCluster() as cluster:
        result = run_on(spark, cluster, bench(4000, 4000), tmp_path / "run", lambda _: None)
    assert result.verdict is Verdict.PROVEN
    assert result.metrics.range_us["output"] is not None
    table = spark.read.parquet(str(write_messages(tmp_path / "run", spark)))
    assert table.count() == 4000
    in_order = "sent_us <= published_us and sent_us <= consumed_us and deliveries = 1"
    assert table.where(in_order).count() == 4000
    assert table.where("outcome = 'ok' and output_us is not null").count() == 4000


@pytest.mark.long
def test_each_group_has_its_own_times_of_every_message(spark: SparkSession, tmp_path: Path) -> None:
    spec = bench(1000, 2000)
    spec = replace(spec, consumers=replace(spec.consumers, groups=("one", "two")))
    with LiteCluster() as cluster:
        result = run_on(spark, cluster, spec, tmp_path / "run", lambda _: None)
    table = spark.read.parquet(str(write_messages(tmp_path / "run", spark)))
    for group in ("one", "two"):
        rows = table.where(f"`group` = '{group}' and deliveries = 1")
        assert rows.count() == 1000
        [[longest]] = rows.selectExpr("max(consumed_us - sent_us)").collect()
        assert longest == result.groups[group].metrics.latency_us["e2e_actual"].max


@pytest.mark.long
def test_messages_that_were_not_received_are_in_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = clean_run()
    history.rows.pop("receipts")
    table = spark.read.parquet(str(write_messages(history.write(tmp_path / "run"), spark)))
    assert table.where("sent_us is not null and consumed_us is null").count() == table.count() == 40


def test_a_killed_task_adds_no_finding(spark: SparkSession, tmp_path: Path) -> None:
    killed: list[int] = []
    with LiteCluster() as cluster:

        def watch(progress: RunProgress) -> None:
            if progress.received > 500 and not killed:
                killed.append(kill_a_worker(cluster.nodes()[0].port))

        result = run_on(spark, cluster, bench(40_000, 2000), tmp_path / "run", watch)
    assert killed
    assert result.verdict is not Verdict.VIOLATED
    assert not LOST & set(map(Finding, result.findings))
    assert result.metrics.attempts == result.metrics.ok + result.metrics.unknown
    assert 0 < result.metrics.delivered <= result.metrics.attempts < 40_000
    table = spark.read.parquet(str(write_messages(tmp_path / "run", spark)))
    assert table.where("deliveries > 0").count() == result.metrics.delivered
    assert table.where("deliveries = 0 and consumed_us is not null").count() == 0
    assert table.where("outcome = 'ok'").count() == result.metrics.ok


def kill_a_worker(broker_port: int) -> int:
    """One of Spark's Python processes that talk to the broker."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some end just now
            peers = {connection.raddr[1:] for connection in process.net_connections()}
            if "pyspark" in " ".join(process.cmdline()) and (broker_port,) in peers:
                process.kill()
                return int(process.pid)
    raise AssertionError("no task talks to the broker")


def test_too_few_slots_are_an_error_before_the_start(spark: SparkSession) -> None:
    with pytest.raises(SystemFailure, match="1000 workers need 1000 slots") as refusal:
        SparkPlacement(spark).wait_for_slots(1000)  # a local Spark gets no further slots
    assert refusal.value.remedy == "use the master local[1000], or fewer workers"
