"""`shoal bench`: measures one cluster with many producers and consumers, four times a message."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.cli.shared.progress import new_run_dir, show_progress
from shoal.cli.shared.signals import answers_signals
from shoal.cli.shared.verdict import EXIT_CODES, format_owed_latency, show_verdict
from shoal.cli.shared.workload_options import (
    consumer_options,
    consumer_settings,
    fetch_settings,
    producer_options,
    producer_settings,
)
from shoal.experiment.spec import (
    ConsumersSpec,
    ExperimentSpec,
    ProducersSpec,
    TopicsSpec,
    WorkersSpec,
)
from shoal.model.exit_codes import ExitCode
from shoal.model.result import PERCENTILES, Result
from shoal.model.units import format_us

EMBEDDED: Final = "lite"


@click.command()
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,…",
    help="The cluster to measure.  [default: an embedded one of three brokers]",
)
@click.option(
    "--engine",
    type=click.Choice(["lite", "apache"]),
    default=EMBEDDED,
    show_default=True,
    help="Engine of the embedded cluster.",
)
@click.option(
    "--topic",
    "--kafka-topic",
    default="shoal-bench",
    show_default=True,
    help="Topic to create; it must not exist.",
)
@click.option(
    "--producers",
    "--test-producer-processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
)
@click.option(
    "--consumers",
    "--test-consumer-processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
)
@click.option(
    "--messages",
    "--test-produce-messages",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Total of all producers.",
)
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    default=10_000.0,
    show_default=True,
    help="Maximum messages per second, total of all producers.",
)
@click.option(
    "--groups",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of consumer groups.",
)
@click.option(
    "--use-message-headers",
    is_flag=True,
    help="Put the identity of a message into headers, not the body.",
)
@producer_options
@consumer_options
@click.option("--partitions", type=click.IntRange(min=1), help="[default: one for each consumer]")
@click.option("--replication-factor", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--master", help="Spark master for the workers.  [default: Spark on this machine]")
@click.option(
    "--leader-expect-offers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Executors to wait for.",
)
@click.option(
    "--leader-host", help="Host at which workers reach this driver.  [default: Spark's driver host]"
)
@click.option("--leader-port", type=click.IntRange(0, 65535), default=0, help="[default: any]")
@click.option("--kafka-bootstrap-host", help="Host of --bootstrap-server.")
@click.option(
    "--kafka-bootstrap-port", type=click.IntRange(1, 65535), default=9092, show_default=True
)
@click.option("-d", "--debug", is_flag=True, help="Log what happens.")
@runs_dir_option
@output_option
@answers_signals()
def bench(
    *,
    bootstrap_server: str | None,
    engine: str,
    master: str | None,
    debug: bool,
    runs_dir: Path,
    output: str,
    **flags: Any,
) -> ExitCode:
    """Measure a cluster end to end: when each message was sent, published, output and consumed.

    The producers and consumers are workers of one Spark application, and start at the same time.

    \b
    shoal bench --producers 2 --consumers 2 --messages 100000 --producer-acks all
    """
    from shoal.experiment.judge import run_experiment
    from shoal.experiment.placing import plan_session
    from shoal.experiment.plan import Addresses
    from shoal.pipeline.messages import write_messages

    if debug:
        logging.getLogger().setLevel(logging.DEBUG)
    workers = WorkersSpec(
        master=master or "",
        executors=flags["leader_expect_offers"],
        host=flags["leader_host"] or "",
        port=flags["leader_port"],
    )
    experiment = _experiment(flags, workers)
    run_dir = new_run_dir(runs_dir, "bench").absolute()
    with (
        plan_session([experiment]) as session,
        _cluster(bootstrap_server or _bootstrap_address(flags), engine) as servers,
    ):
        with show_progress() as watch:
            result = run_experiment(
                experiment,
                addresses=Addresses(servers),
                run_dir=run_dir,
                session=session,
                watch=watch,
            )
        table = write_messages(run_dir, session.result())
    _show(result, output, run_dir=run_dir, table=table)
    return EXIT_CODES[result.verdict]


def _experiment(flags: dict[str, Any], workers: WorkersSpec) -> ExperimentSpec:
    partitions = flags["partitions"] or flags["consumers"]
    return ExperimentSpec(
        flags["topic"],
        TopicsSpec(
            flags["topic"],
            partitions=partitions,
            target_partitions=partitions,
            replication_factor=flags["replication_factor"],
            # With LogAppendTime the log has the time at which a message was output.
            configs={"message.timestamp.type": "LogAppendTime"},
        ),
        ProducersSpec(
            flags["producers"],
            {
                "messages": flags["messages"],
                "rate_per_s": flags["throughput"],
                "drain_timeout_s": 60.0,
                **producer_settings(flags),
            },
        ),
        ConsumersSpec(
            flags["consumers"],
            _group_names(flags["groups"]),
            settings=consumer_settings(flags),
            fetching=fetch_settings(flags),
        ),
        promises={"delivery": "at_least_once", "order": True},
        workers=workers,
    )


def _group_names(count: int) -> tuple[str, ...]:
    if count == 1:
        return ("consumers",)
    return tuple(f"consumers-{number}" for number in range(1, count + 1))


def _bootstrap_address(flags: dict[str, Any]) -> str | None:
    """The address from the option names of the Kafka end-to-end performance test."""
    host = flags["kafka_bootstrap_host"]
    return f"{host}:{flags['kafka_bootstrap_port']}" if host else None


@contextmanager
def _cluster(servers: str | None, engine: str) -> Iterator[str]:
    if servers is not None:
        yield servers
        return
    from shoal.systems.clusters import make_cluster

    with make_cluster(engine, brokers=3) as cluster:
        console.say(f"measuring an embedded cluster, {engine}, three brokers: {cluster.bootstrap}")
        yield cluster.bootstrap


def _show(result: Result, output: str, *, run_dir: Path, table: Path) -> None:
    if output == "json":
        console.print_json(result.to_json() | {"messages_table": str(table)})
        return
    show_verdict(result, run_dir)
    latency = result.metrics.latency_us.get("e2e_actual")
    if latency is not None and latency.max is not None and latency.mean is not None:
        console.print_line("  from sent to consumed")
        console.print_line(
            f"    mean {format_us(round(latency.mean))}, max {format_owed_latency(latency, 'max')}"
        )
        shown = [f"{name} {format_owed_latency(latency, name)}" for name, *_ in PERCENTILES]
        console.print_line(f"    {', '.join(shown)}")
    for name, value in result.metrics.range_us.items():
        text = "unknown" if value is None else format_us(value)
        console.print_line(f"  {name} range  {text}")
    console.print_line(f"  every message  {table}")
