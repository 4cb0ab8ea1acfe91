"""`shoal produce` and `shoal consume`: one end of a test each, in places that share nothing."""

import asyncio
import math
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.options import Command, cluster_properties, output_option, runs_dir_option
from shoal.cli.shared.workload_options import (
    consumer_options,
    consumer_settings,
    fetch_settings,
    producer_options,
    producer_settings,
)
from shoal.model.errors import UsageError
from shoal.workload.specs import ConsumerSpec, FetchSettings, ProducedTopic, ProducerSpec

SPEAK_EVERY_S: Final = 2.0


def _connection(command: Command) -> Command:
    """Where to, and what is common to both ends."""
    options = (
        click.option("--bootstrap-server", required=True, metavar="HOST:PORT,…", help="Brokers."),
        click.option(
            "--command-config",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="A .properties file for the client.",
        ),
        click.option(
            "--command-property",
            multiple=True,
            metavar="KEY=VALUE",
            help="One property for the client; may be repeated.",
        ),
        click.option("--topics", required=True, help="Topics, separated by commas."),
        click.option(
            "--use-message-headers",
            is_flag=True,
            help="Identity in headers instead of the body; consumers see by themselves.",
        ),
        click.option(
            "--ledger",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder for the ledgers.  [default: a new one in the folder of runs]",
        ),
        runs_dir_option,
        output_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_connection
@click.option("--id", "producer", help="The producer's id.  [default: this host's name]")
@click.option("--run", help="The run that the messages belong to.  [default: a new one]")
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    help="Messages per second to each topic: never more.",
)
@click.option("--messages", type=click.IntRange(min=1), help="In all.  [default: until stopped]")
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Seconds to send.")
@producer_options
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    help="Partitions of the target topics.  [default: as many as the source has]",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds to write drain markers after the last answer.",
)
def produce(
    *,
    producer: str | None,
    run: str | None,
    topics: str,
    throughput: float,
    lanes: int | None,
    runs_dir: Path,
    ledger: Path | None,
    output: str,
    **rest: Any,
) -> None:
    """Send numbered, timed messages, and record what became of each.

    \b
    shoal produce --bootstrap-server 127.0.0.1:9092 --topics orders --throughput 1000
    """
    from shoal.experiment.alone import produce_alone

    run = run or f"run-{uuid.uuid4().hex[:8]}"
    spec = ProducerSpec(
        run=run,
        producer=producer or _host(),
        topics=tuple(ProducedTopic(name, 1, 1) for name in _names(topics)),
        rate_per_s=throughput,
        messages=rest["messages"],
        duration_s=rest["duration"],
        drain_timeout_s=rest["drain"],
        **producer_settings(rest),
    )
    folder = ledger or runs_dir / f"{run}-{_file_name(spec.producer)}"
    console.say(f"run {run}, producer {spec.producer}; ledgers in {folder}")
    console.say(f"the other end: shoal consume --run {run} --topics … --bootstrap-server …")
    summary = asyncio.run(
        produce_alone(
            spec,
            _properties(rest),
            lanes=lanes,
            folder=folder,
            on_progress=_speaker(_told_of_producer),
        )
    )
    _show(summary.to_json() | {"run": run, "ledger": str(folder)}, output, _told_of_producer)


@click.command()
@_connection
@click.option("--run", default="", help="The run to read.  [default: the first that it meets]")
@click.option(
    "--group",
    default="consumers",
    show_default=True,
    help="The group that it reads for; each is judged by itself.",
)
@click.option("--id", "consumer", help="The consumer's id.  [default: this host's name]")
@click.option("--topic-prefix", default="", help="What the mirror put before the topics' names.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to begin.",
)
@consumer_options
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Seconds to read.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0, min_open=True),
    help="End when nothing more has arrived for so many seconds.",
)
@click.option("--messages", type=click.IntRange(min=1), help="End after so many.")
def consume(
    *,
    run: str,
    group: str,
    consumer: str | None,
    topics: str,
    runs_dir: Path,
    ledger: Path | None,
    output: str,
    **rest: Any,
) -> None:
    """Read what `shoal produce` sent, wherever it arrives, and record every delivery.

    \b
    shoal consume --bootstrap-server 127.0.0.1:9192 --topics orders
    """
    from shoal.experiment.alone import Reading, consume_alone

    name = consumer or _host()
    spec = ConsumerSpec(
        run=run,
        group=group,
        consumer=name,
        topics=(),
        partitions=(),
        fetching=FetchSettings(**fetch_settings(rest)),
        **consumer_settings(rest),
    )
    reading = Reading(
        topics=tuple(_names(topics)),
        prefix=rest["topic_prefix"],
        from_start=rest["start"] == "earliest",
        duration_s=rest["duration"],
        idle_s=rest["idle"],
        messages=rest["messages"],
    )
    label = run or f"read-{uuid.uuid4().hex[:8]}"
    folder = ledger or runs_dir / f"{label}-{_file_name(name)}-{_file_name(group)}"
    console.say(f"consumer {name} of {group}; ledgers in {folder}")
    summary = asyncio.run(
        consume_alone(
            spec,
            reading,
            _properties(rest),
            folder=folder,
            on_progress=_speaker(_told_of_consumer),
        )
    )
    _show(summary.to_json() | {"ledger": str(folder)}, output, _told_of_consumer)


def _properties(values: Mapping[str, Any]) -> dict[str, str]:
    names = ("bootstrap_server", "command_config", "command_property")
    return cluster_properties("the", {f"the_{name}": values[name] for name in names})


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{text!r} is no list of topics", remedy="write --topics first,second")
    return names


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _speaker(tell: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], None]:
    """Says now and then how far it is."""
    spoken_s = -math.inf

    def speak(report: Mapping[str, Any]) -> None:
        nonlocal spoken_s
        if time.monotonic() - spoken_s > SPEAK_EVERY_S:
            spoken_s = time.monotonic()
            console.say(tell(report))

    return speak


def _told_of_producer(report: Mapping[str, Any]) -> str:
    return (
        f"sent {report['attempts']:,}: {report['ok']:,} acknowledged, {report['failed']:,} failed,"
        f" {report['unknown']:,} unknown; {report['behind']:,} behind the schedule"
        f"{_told_of_transactions(report)}"
    )


def _told_of_transactions(report: Mapping[str, Any]) -> str:
    fates = ("committed", "aborted", "open")
    counts = {fate: report[f"transactions_{fate}"] for fate in fates}
    if not any(counts.values()):
        return ""
    return "; transactions: " + ", ".join(f"{count:,} {fate}" for fate, count in counts.items())


def _told_of_consumer(report: Mapping[str, Any]) -> str:
    return (
        f"received {report['received']:,} from {report['partitions']} partitions; open gaps"
        f" {report['open_gaps']:,}, duplicates"
        f" {report['duplicates']:,}, late {report['late']:,}, missing tails"
        f" {report['missing_tails']:,}, unreadable {report['unreadable']:,}, foreign"
        f" {report['foreign']:,}; latency p50 {report['latency_p50_us'] / 1000:,.1f} ms,"
        f" p99 {report['latency_p99_us'] / 1000:,.1f} ms"
    )


def _show(report: Mapping[str, Any], output: str, tell: Callable[[Mapping[str, Any]], str]) -> None:
    if output == "json":
        console.print_json(report)
    else:
        console.say(tell(report))
