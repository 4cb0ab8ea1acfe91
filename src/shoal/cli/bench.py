"""`shoal bench`: many producers and consumers on one cluster, four timestamps of every message."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import rich_click as click

from shoal.cli.demo import new_run_dir, watching
from shoal.cli.shared import console
from shoal.cli.shared.options import output_option, runs_dir_option
from shoal.cli.shared.verdict import EXIT_CODES, show_verdict, shown_owed
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
    help="What to embed if no cluster is named.",
)
@click.option(
    "--topic",
    "--kafka-topic",
    default="shoal-bench",
    show_default=True,
    help="A topic to make; it must not exist.",
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
    help="In all, over all producers.",
)
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    default=10_000.0,
    show_default=True,
    help="Messages per second in all: never more.",
)
@click.option(
    "--groups", type=click.IntRange(min=1), default=1, show_default=True, help="Of consumers."
)
@click.option("--use-message-headers", is_flag=True, help="Identity in headers, not in the body.")
@producer_options
@consumer_options
@click.option("--partitions", type=click.IntRange(min=1), help="[default: one for each consumer]")
@click.option("--replication-factor", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--master", help="Where the workers run.  [default: Spark in this machine]")
@click.option(
    "--leader-expect-offers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Executors to wait for.",
)
@click.option("--leader-host", help="Where workers reach this driver.  [default: as Spark says]")
@click.option("--leader-port", type=click.IntRange(0, 65535), default=0, help="[default: any]")
@click.option("--kafka-bootstrap-host", help="Host of --bootstrap-server.")
@click.option(
    "--kafka-bootstrap-port", type=click.IntRange(1, 65535), default=9092, show_default=True
)
@click.option("-d", "--debug", is_flag=True, help="Log what happens.")
@runs_dir_option
@output_option
def bench(
    *,
    bootstrap_server: str | None,
    engine: str,
    master: str | None,
    debug: bool,
    runs_dir: Path,
    output: str,
    **wishes: Any,
) -> ExitCode:
    """Measure a cluster end to end: when each message was sent, published, output and consumed.

    The producers and consumers are workers of one Spark application, started at one time.

    \b
    shoal bench --producers 2 --consumers 2 --messages 100000 --producer-acks all
    """
    from shoal.experiment.judge import run_experiment
    from shoal.experiment.placing import Placing, slots_of
    from shoal.experiment.plan import Addresses
    from shoal.pipeline.messages import write_messages

    if debug:
        logging.getLogger().setLevel(logging.DEBUG)
    workers = WorkersSpec(
        on_spark=True,
        master=master or "",
        executors=wishes["leader_expect_offers"],
        host=wishes["leader_host"] or "",
        port=wishes["leader_port"],
    )
    experiment = _experiment(wishes, workers)
    run_dir = new_run_dir(runs_dir, "bench").absolute()
    with (
        Placing([experiment]) as placing,
        _cluster(bootstrap_server or _seed_address(wishes), engine) as servers,
    ):
        console.say(f"waiting for {slots_of(experiment)} slots")
        place = placing.place()
        with watching() as watch:
            result = run_experiment(
                experiment,
                addresses=Addresses(servers),
                run_dir=run_dir,
                session=placing.session,
                watch=watch,
                place=place,
            )
        table = write_messages(run_dir, placing.session.result())
    _show(result, output, run_dir=run_dir, table=table)
    return EXIT_CODES[result.verdict]


def _experiment(wishes: dict[str, Any], workers: WorkersSpec) -> ExperimentSpec:
    partitions = wishes["partitions"] or wishes["consumers"]
    return ExperimentSpec(
        wishes["topic"],
        TopicsSpec(
            wishes["topic"],
            partitions=partitions,
            target_partitions=partitions,
            replication_factor=wishes["replication_factor"],
            # So that the log itself says when a message was output.
            configs={"message.timestamp.type": "LogAppendTime"},
        ),
        ProducersSpec(
            wishes["producers"],
            {
                "messages": wishes["messages"],
                "rate_per_s": wishes["throughput"],
                "drain_timeout_s": 60.0,
                **producer_settings(wishes),
            },
        ),
        ConsumersSpec(
            wishes["consumers"],
            _group_names(wishes["groups"]),
            settings=consumer_settings(wishes),
            fetching=fetch_settings(wishes),
        ),
        promises={"delivery": "at_least_once", "order": True},
        workers=workers,
    )


def _group_names(count: int) -> tuple[str, ...]:
    if count == 1:
        return ("consumers",)
    return tuple(f"consumers-{number}" for number in range(1, count + 1))


def _seed_address(wishes: dict[str, Any]) -> str | None:
    """The cluster, as Kafka end-to-end perf test names it."""
    host = wishes["kafka_bootstrap_host"]
    return f"{host}:{wishes['kafka_bootstrap_port']}" if host else None


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
        console.out.print("  from sent to consumed")
        console.out.print(
            f"    mean {format_us(round(latency.mean))}, max {shown_owed(latency, 'max')}"
        )
        shown = [f"{name} {shown_owed(latency, name)}" for name, *_ in PERCENTILES]
        console.out.print(f"    {', '.join(shown)}")
    for name, value in result.metrics.range_us.items():
        told = "unknown" if value is None else format_us(value)
        console.out.print(f"  {name} range  {told}")
    console.out.print(f"  every message  {table}")
