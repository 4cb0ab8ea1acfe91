"""`shoal produce` and `shoal consume`: the two ends of a test, on machines that share nothing."""

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.complete import complete_run, complete_topics
from shoal.cli.shared.options import Command, cluster_properties, output_option, runs_dir_option
from shoal.cli.shared.progress import (
    format_elapsed,
    histogram_lines,
    latencies_of,
    show_reports,
)
from shoal.cli.shared.workload_options import (
    consumer_options,
    consumer_settings,
    fetch_settings,
    producer_options,
    producer_settings,
)
from shoal.experiment.runs import find_run_id, list_runs
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.runs import run_hash
from shoal.workload.specs import ConsumerSpec, FetchSettings, ProducedTopic, ProducerSpec

if TYPE_CHECKING:
    from shoal.workload.receive.newest_run import NewestRun
    from shoal.workload.send.producer import ProducerSummary


def _common_options(command: Command) -> Command:
    """The options that both commands have: the cluster, the topics and the ledgers."""
    options = (
        click.option(
            "--bootstrap-server",
            required=True,
            metavar="HOST:PORT,…",
            help="Brokers of the cluster.",
        ),
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
        click.option(
            "--topics",
            required=True,
            help="Topics, separated by commas.",
            shell_complete=complete_topics,
        ),
        click.option(
            "--create-topics",
            "new_partitions",
            type=click.IntRange(min=1),
            metavar="PARTITIONS",
            help="Create topics that do not exist, with so many partitions.",
        ),
        click.option(
            "--use-message-headers",
            is_flag=True,
            help="Put the identity of a message into headers; consumers detect it.",
        ),
        click.option(
            "--ledger",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the ledgers.  [default: a new folder in the folder of runs]",
        ),
        runs_dir_option,
        output_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_common_options
@click.option("--id", "producer", help="The producer's id.  [default: this host's name]")
@click.option("--run", help="The run that the messages belong to.  [default: a new one]")
@click.option(
    "--throughput",
    type=click.FloatRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    help="Maximum messages per second to each topic.",
)
@click.option(
    "--messages", type=click.IntRange(min=1), help="Total number.  [default: until stopped]"
)
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
    help="Seconds to send drain markers after the last response.",
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
    """Send numbered, timed messages, and record the outcome of each.

    \b
    shoal produce --bootstrap-server 127.0.0.1:9092 --topics orders --throughput 1000
    """
    from shoal.experiment.standalone import produce_standalone

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
    with show_reports(_format_producer, "attempts") as view:
        summary = asyncio.run(
            produce_standalone(
                spec,
                _properties(rest),
                lanes=lanes,
                new_partitions=rest["new_partitions"],
                folder=folder,
                on_progress=view,
            )
        )
    shown = summary.to_json() | {"run": run, "ledger": str(folder)}
    _show(shown, view.last, output, _format_producer)
    _require_acknowledged(summary)


@click.command()
@_common_options
@click.option(
    "--run",
    default="",
    help="The run to read.  [default: the newest in the topics, or else of the first message]",
    shell_complete=complete_run,
)
@click.option(
    "--group",
    default="consumers",
    show_default=True,
    help="The group of the consumer; each group is judged separately.",
)
@click.option("--id", "consumer", help="The consumer's id.  [default: this host's name]")
@click.option(
    "--topic-prefix", default="", help="Prefix that the mirror added to the topics' names."
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to start reading.",
)
@consumer_options
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), help="Seconds to read.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop when nothing has arrived for this many seconds.",
)
@click.option("--messages", type=click.IntRange(min=1), help="Stop after this many messages.")
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
    """Read what `shoal produce` sent, on any cluster, and record every delivery.

    \b
    shoal consume --bootstrap-server 127.0.0.1:9192 --topics orders
    """
    from shoal.experiment.standalone import ReadOptions, consume_standalone

    run = find_run_id(runs_dir, run) if run else ""
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
    options = ReadOptions(
        topics=tuple(_names(topics)),
        prefix=rest["topic_prefix"],
        from_start=rest["start"] == "earliest",
        duration_s=rest["duration"],
        idle_s=rest["idle"],
        messages=rest["messages"],
        new_partitions=rest["new_partitions"],
    )
    label = run or f"read-{uuid.uuid4().hex[:8]}"
    folder = ledger or runs_dir / f"{label}-{_file_name(name)}-{_file_name(group)}"
    console.say(f"consumer {name} of {group}; ledgers in {folder}")
    with show_reports(_format_consumer, "received") as view:
        summary = asyncio.run(
            consume_standalone(
                spec,
                options,
                _properties(rest),
                folder=folder,
                on_progress=view,
                on_run=partial(_announce_run, runs_dir),
            )
        )
    shown = summary.to_json() | {"ledger": str(folder)}
    _show(shown, view.last, output, _format_consumer)


def _announce_run(runs_dir: Path, newest: "NewestRun") -> None:
    age = format_elapsed(max(time.time() - newest.sent_ms / 1000, 0))
    names = (run.run for run in list_runs(runs_dir))
    name = next((each for each in names if run_hash(each) == run_hash(newest.run)), newest.run)
    console.say(
        f"reading run {name}, the newest in these topics: its last message was sent {age} ago;"
        " --run reads another"
    )


def _require_acknowledged(summary: "ProducerSummary") -> None:
    """Raise, with Kafka's names of the errors, if a broker did not acknowledge what it should."""
    if not summary.errors:
        return
    total = sum(summary.errors.values())
    counts = ", ".join(f"{name} ({count:,})" for name, count in summary.errors.items())
    raise SystemFailure(
        f"{total:,} of {summary.attempts:,} messages were not acknowledged: {counts}",
        remedy="the ledger has the outcome of each; shoal audit judges what was promised",
    )


def _properties(values: Mapping[str, Any]) -> dict[str, str]:
    names = ("bootstrap_server", "command_config", "command_property")
    return cluster_properties("the", {f"the_{name}": values[name] for name in names})


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"--topics: {text!r} is not a list of different topics",
            remedy="write --topics first,second",
        )
    return names


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)


def _format_producer(report: Mapping[str, Any]) -> str:
    return (
        f"sent {report['attempts']:,}: {report['ok']:,} acknowledged, {report['failed']:,} failed,"
        f" {report['unknown']:,} unknown; {report['behind']:,} behind the schedule"
        f"{_format_errors(report)}{_format_transactions(report)}"
    )


def _format_errors(report: Mapping[str, Any]) -> str:
    errors: Mapping[str, int] = report["errors"]
    return "".join(f"; {name}: {count:,}" for name, count in errors.items())


def _format_transactions(report: Mapping[str, Any]) -> str:
    fates = ("committed", "aborted", "open")
    counts = {fate: report[f"transactions_{fate}"] for fate in fates}
    if not any(counts.values()):
        return ""
    return "; transactions: " + ", ".join(f"{count:,} {fate}" for fate, count in counts.items())


def _format_consumer(report: Mapping[str, Any]) -> str:
    return (
        f"received {report['received']:,} from {report['partitions']} partitions; open gaps"
        f" {report['open_gaps']:,}, duplicates"
        f" {report['duplicates']:,}, late {report['late']:,}, missing tails"
        f" {report['missing_tails']:,}, unreadable {report['unreadable']:,}, foreign"
        f" {report['foreign']:,}; latency p50 {report['latency_p50_us'] / 1000:,.1f} ms,"
        f" p99 {report['latency_p99_us'] / 1000:,.1f} ms"
    )


def _show(
    summary: Mapping[str, Any],
    last: Mapping[str, Any],
    output: str,
    format_report: Callable[[Mapping[str, Any]], str],
) -> None:
    """Print the summary; `last` is the last report, which has the latencies."""
    if output == "json":
        console.print_json(summary)
        return
    console.say(format_report(summary))
    for line in histogram_lines(latencies_of(last)):
        console.say(line)
