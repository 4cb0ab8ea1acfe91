"""`shoal mirror`: copy topics from one cluster to another, batch by batch."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from shoal.cli.mirror.copy_options import copy_options, copy_rules, read_topic_limits
from shoal.cli.mirror.options import group_rules, topic_options, topic_rules
from shoal.cli.mirror.translate import translate_command
from shoal.cli.mirror.verify import verify_command
from shoal.cli.mirror.watch import pause_command, resume_command, status_command
from shoal.cli.mirror.workers import open_copy_backend
from shoal.cli.shared import console
from shoal.cli.shared.metrics_options import metrics_options, take_endpoint
from shoal.cli.shared.options import Command, cluster_options, cluster_properties
from shoal.mirror.config import HeartbeatRules, MirrorConfig, MirrorLimits
from shoal.mirror.copy.delivery.names import DELIVERIES
from shoal.mirror.mm2.patterns import parse_list
from shoal.model.errors import ShoalError, UsageError
from shoal.model.units import format_bytes

if TYPE_CHECKING:
    from shoal.mirror.status import MirrorStatus
    from shoal.telemetry.http_port import EndpointSpec

PRINT_EVERY_S: Final = 5.0
# Options that can be given together with a MirrorMaker 2 file.
_BESIDE_FILE: Final = ("handler", "positions", "re_encoded", "stop_with_parent")


@click.group()
def mirror() -> None:
    """Copy topics between clusters without unpacking their record batches.

    \b
    shoal mirror run --source-bootstrap-server 127.0.0.1:9092 \\
                     --target-bootstrap-server 127.0.0.1:9192 --topics orders,pay.*
    shoal mirror run mm2.properties
    """


for _command in (
    status_command,
    pause_command,
    resume_command,
    translate_command,
    verify_command,
):
    mirror.add_command(_command)


def _both_clusters(command: Command) -> Command:
    return cluster_options("source")(cluster_options("target")(command))


@mirror.command("run")
@click.argument(
    "file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@_both_clusters
@topic_options
@click.option(
    "--name",
    default="default",
    show_default=True,
    help="Identifies the mirror's checkpoints at the target; run only one mirror with a name.",
)
@click.option(
    "--delivery",
    type=click.Choice(DELIVERIES),
    default="idempotent",
    show_default=True,
    help="compare-and-append keeps the source's offsets and needs Kafka Lite; auto uses it if "
    "possible. Records that are too old for idempotent get another delivery, which is reported.",
)
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Where to start topics that were not copied before; a time in ISO 8601 or in ms.",
)
@copy_options
@click.option(
    "--max-bytes-per-s",
    type=click.IntRange(min=0),
    default=0,
    help="Average limit of the send rate, for all workers together; 0 for no limit.",
)
@click.option(
    "--topic-max-bytes-per-s",
    multiple=True,
    metavar="TOPIC=N",
    help="The same for one topic of the source; can be repeated.",
)
@click.option(
    "--handler",
    metavar="MODULE:FUNCTION",
    help="A Python function that is called with each batch and can keep, change or drop it.",
)
@click.option(
    "--positions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the positions of the mirror to this file.",
)
@click.option(
    "--re-encoded",
    type=click.Path(path_type=Path, dir_okay=False),
    help="List the target batches that had to be re-encoded in this file.",
)
@click.option(
    "--events",
    "events",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write what the mirror does to events.jsonl in this folder; with several flows, in a "
    "folder for each.  [default: mirrors/NAME in the state folder]",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Share the partitions among this many processes.  [default: copy in this process]",
)
@click.option("--master", help="Run the workers as tasks of this Spark master, such as local[*].")
@click.option("--stop-with-parent", is_flag=True, help="Stop when the parent process ends.")
@metrics_options
def run_command(
    *,
    file: Path | None,
    events: Path | None,
    workers: int | None,
    master: str | None,
    **options: Any,
) -> None:
    """Copy until stopped (Ctrl-C): every batch unchanged, in order, once.

    After a restart, even after a kill, it resumes where it ended. FILE is a configuration file of
    MirrorMaker 2; it replaces the options for clusters and topics.
    """
    from shoal.mirror.command import MetricsEndpoint, run_mirrors

    spec = take_endpoint(options)
    metrics = None if spec is None else MetricsEndpoint(spec, partial(_announce_metrics, spec))
    configs = [_config(options)] if file is None else _configs_of(file, options)
    several = len(configs) > 1
    with open_copy_backend(workers, master, flows=len(configs)) as make_backend:
        statuses = run_mirrors(
            configs,
            on_status=_reporter(several=several),
            make_backend=make_backend,
            metrics=metrics,
            events_folder=lambda name: _events_folder(events, name, several=several),
        )
    problems: list[ShoalError] = []
    for config, status in zip(configs, statuses, strict=True):
        console.say(_format_status(status, config.name if several else ""))
        problems += status.parked + status.refused
    if problems:
        raise problems[0]


def _announce_metrics(spec: "EndpointSpec", port: int) -> None:
    console.say(f"metrics: http://{spec.host}:{port}/metrics")


def _events_folder(chosen: Path | None, name: str, *, several: bool) -> Path:
    from shoal.telemetry.discovery import mirror_folder

    if chosen is None:
        return mirror_folder(name)
    return chosen / name if several else chosen


def _config(options: dict[str, Any]) -> MirrorConfig:
    if not options["topics"]:
        raise UsageError(
            "no topics to mirror are given",
            remedy="give --topics a,b.* or a configuration file of MirrorMaker 2",
        )
    return MirrorConfig(
        source=cluster_properties("source", options),
        target=cluster_properties("target", options),
        topics=parse_list(options["topics"]),
        name=options["name"],
        delivery=options["delivery"],
        start=options["start"],
        copy=copy_rules(options),
        limits=MirrorLimits(
            max_bytes_per_s=options["max_bytes_per_s"],
            topic_max_bytes_per_s=read_topic_limits(options["topic_max_bytes_per_s"]),
        ),
        handler=options["handler"],
        positions=options["positions"],
        re_encoded=options["re_encoded"],
        stop_with_parent=options["stop_with_parent"],
        rules=topic_rules(options),
        groups=group_rules(options),
        heartbeats=HeartbeatRules(emit=options["emit_heartbeats"]),
    )


def _configs_of(file: Path, options: dict[str, Any]) -> list[MirrorConfig]:
    from shoal.mirror.mm2.properties import read_mirror_file

    context = get_current_context()
    with_file = {"file", *_BESIDE_FILE}
    for name in options:
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in with_file:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} cannot be combined with a file", remedy=f"set it in {file} instead"
            )
    found = read_mirror_file(file)
    for name in ("positions", "re_encoded"):
        if options[name] is not None and len(found.flows) > 1:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} works only with one flow, and {file} has {len(found.flows)}",
                remedy="disable the other flows, or leave the option out",
            )
    if found.without_effect:
        console.say(f"settings without effect: {', '.join(found.without_effect)}")
    if found.only_deep:
        console.say(
            "settings without effect, because use.raw.bytes or shoal.depth demands raw and no "
            f"topic is copied deep (shoal.deep.topics): {', '.join(found.only_deep)}"
        )
    common = {name: options[name] for name in _BESIDE_FILE}
    return [replace(flow, **common) for flow in found.flows]


def _reporter(*, several: bool) -> "Callable[[str, MirrorStatus], None]":
    """Return a function that prints the status periodically."""
    spoken: dict[str, float] = {}
    explained: set[tuple[str, str]] = set()

    def report(name: str, status: "MirrorStatus") -> None:
        for topic, (delivery, why) in status.deliveries.items():
            if why is not None and (name, topic) not in explained:
                explained.add((name, topic))
                console.say(f"topic {topic} uses --delivery {delivery}: {why}")
        if time.monotonic() - spoken.get(name, 0.0) > PRINT_EVERY_S:
            spoken[name] = time.monotonic()
            console.say(_format_status(status, name if several else ""))

    return report


def _format_status(status: "MirrorStatus", name: str = "") -> str:
    counts = status.counts
    lag = "unknown" if status.lag < 0 else f"{status.lag:,}"
    copied = f"{counts.records:,} records, {format_bytes(counts.bytes)}"
    flow = f"{name}: " if name else ""
    text = f"{flow}copied {copied} in {counts.batches:,} batches; lag {lag}"
    for count, what in (
        (counts.already_there, "records were already at the target"),
        (counts.trimmed + counts.closed_gaps + counts.split, "batches re-encoded"),
        (counts.rebatched, "tiny or deep batches put into larger ones"),
        (counts.restamped, "batches re-encoded with the source's append times"),
        (counts.converted, "batches re-encoded from message format 0 or 1"),
        (counts.damaged, "damaged batches read"),
        (counts.lost, "offsets LOST: deleted at the source before they were copied"),
        (counts.displaced, "batches displaced: ANOTHER PRODUCER writes to the target"),
    ):
        text += f"; {count:,} {what}" if count else ""
    return text
