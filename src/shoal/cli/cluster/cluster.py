"""`shoal cluster`: starts a Kafka cluster, and controls it from another terminal.

`up` owns the cluster: the cluster ends with the command, also if that is killed. `--detach` starts
the same command in the background and returns once the cluster can be used.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from shoal.cli.cluster.faults import fault
from shoal.cli.cluster.names import name_option, name_option_or_argument
from shoal.cli.shared import console
from shoal.cli.shared.acting import act_on_cluster
from shoal.cli.shared.metrics_options import metrics_options, take_endpoint
from shoal.cli.shared.options import output_option, properties_of
from shoal.control.clusters import find_entry, list_entries
from shoal.lite.base.spec import MAX_BROKERS
from shoal.lite.cluster import LiteCluster, QuorumStatus
from shoal.lite.metadata.rules.profiles import PROFILES
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.serialised import to_plain
from shoal.systems import registry
from shoal.systems.apache.ivy import Report, StartProgress
from shoal.systems.clusters import ENGINES, Cluster, make_cluster
from shoal.systems.registry import RegistryEntry
from shoal.systems.remote import RemoteNode, open_remote_cluster

if TYPE_CHECKING:
    from shoal.systems.metadata_events import MetadataEvents

DETACH_TIMEOUT_S: Final = 300.0
PRINT_EVERY_S: Final = 5.0
CHECK_EVERY_S: Final = 0.5
STATE_STYLES = {"running": "green", "paused": "yellow", "starting": "yellow", "down": "red"}


@click.group()
@click.command_panel("The cluster", commands=["up", "status", "down"])
@click.command_panel(
    "Nodes", commands=["kill", "stop", "pause", "resume", "restart", "add", "remove"]
)
@click.command_panel("Faults and traces", commands=["fault", "trace"])
def cluster() -> None:
    """A Kafka cluster on this machine: Kafka Lite or Apache Kafka.

    \b
    shoal cluster up                     Kafka Lite, until Ctrl-C
    shoal cluster up --brokers 3         with replicas and fail-over
    shoal cluster up --brokers 3 --controllers 3
                                         no single point of failure
    shoal cluster up --engine apache     a real Apache Kafka, with no Docker
    shoal cluster up --detach --name t1  in the background
    shoal cluster kill 1                 from another terminal
    shoal cluster restart 1
    shoal cluster add                    one more broker
    shoal cluster fault cut 1 2          faults of links, disks and requests
    shoal cluster trace --name t1        the order of events, for ShiViz
    shoal cluster down --name t1
    """


cluster.add_command(fault)


@cluster.command("up")
@click.option("--engine", type=click.Choice(ENGINES), default="lite", show_default=True)
@click.option(
    "--brokers",
    type=click.IntRange(1, MAX_BROKERS),
    help="Number of brokers.  [default: as in the folder, or 1]",
)
@click.option(
    "--controllers",
    type=click.IntRange(1, 9),
    help="Kafka Lite: number of controllers, each in a process of its own; 3 tolerate the loss of "
    "one, 2 of none.  [default: as in the folder, or one inside the supervisor]",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="Kafka Lite: listen on all addresses, and advertise this host to clients.",
)
@click.option("--name", help="A name for status, kill and down.  [default: generated]")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder that keeps the data for later starts.  [default: a temporary folder]",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="Kafka Lite: how many replicas must have a record before it is acknowledged: all "
    "(strict), two of three (default), or one (available).",
)
@click.option("--version", help="Version of Apache Kafka.  [default: the newest known one]")
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Broker property, as in server.properties; may be repeated.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Kafka Lite: record the order of events, for `shoal cluster trace`.",
)
@metrics_options
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
def up_command(*, properties: tuple[str, ...], detach: bool, **wanted: Any) -> None:
    """Start a cluster and print its bootstrap line."""
    if detach:
        _start_in_background(
            [argument for argument in sys.argv[1:] if argument not in {"-d", "--detach"}]
        )
        return
    started = time.monotonic()
    wanted["metrics"] = take_endpoint(wanted)
    wanted["name"] = wanted["name"] or registry.free_name(wanted["engine"])
    with _progress_bar() as report:
        system = make_cluster(properties=properties_of(properties), report=report, **wanted)
        system.start()
    events: MetadataEvents | None = None
    try:
        registry.publish(system)
        events = _write_events(system)
        _serve_until_stopped(system, time.monotonic() - started)
        console.say("stopping")
    finally:
        if events is not None:
            events.close()
        registry.withdraw(system.name)
        system.stop()


def _write_events(system: Cluster) -> "MetadataEvents | None":
    """Write the events of an Apache Kafka into its folder; a Kafka Lite writes its own."""
    if system.engine != "apache":
        return None
    from shoal.systems.apache.apache import ApacheCluster
    from shoal.systems.metadata_events import MetadataEvents

    if not isinstance(system, ApacheCluster) or system.directory is None:
        return None
    servers = {"bootstrap.servers": system.bootstrap}
    return MetadataEvents(
        system.directory, system.name, servers, engine=system.engine, list_nodes=system.nodes
    )


def _announce(system: Cluster, seconds: float) -> None:
    console.say(f"cluster {system.name} ({system.engine}) is ready after {seconds:.1f} s", "green")
    # This is the only line on standard output, so that scripts can use it.
    sys.stdout.write(f"bootstrap.servers={system.bootstrap}\n")
    sys.stdout.flush()
    console.say(f"  kcat -b {system.bootstrap} -L")
    if isinstance(system, LiteCluster) and (endpoint := system.metrics) is not None:
        console.say(f"  metrics: http://{endpoint.host}:{system.metrics_port}/metrics")
    console.say(f"  shoal cluster down --name {system.name}    (or Ctrl-C here)")


def _serve_until_stopped(system: Cluster, started_after_s: float) -> None:
    """Announce the cluster; return on Ctrl-C, SIGTERM or a closed terminal.

    Raises if the cluster ends.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        _announce(system, started_after_s)
        while True:
            time.sleep(CHECK_EVERY_S)
            if isinstance(system, LiteCluster):
                system.check_supervisor()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def _start_in_background(arguments: Sequence[str]) -> None:
    with tempfile.NamedTemporaryFile("w+", prefix="shoal-up-", suffix=".log") as log:
        owner = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        deadline = time.monotonic() + DETACH_TIMEOUT_S
        while time.monotonic() < deadline:
            entry = next((e for e in registry.entries() if e.owner.pid == owner.pid), None)
            if entry is not None:
                console.say(f"cluster {entry.name} is running in the background")
                sys.stdout.write(f"bootstrap.servers={entry.bootstrap}\n")
                return
            if owner.poll() is not None:
                break
            time.sleep(0.02)
        else:
            owner.terminate()
        log.seek(0)
        raise SystemFailure(f"the cluster did not start: {log.read().strip()}")


@contextmanager
def _progress_bar() -> Iterator[Report]:
    """Show a progress bar on a terminal, or else a line every few seconds."""
    doing = TextColumn("{task.description}", markup=False)
    columns = (doing, BarColumn(), MofNCompleteColumn())
    printed_s = 0.0
    with Progress(
        *columns, console=console.err, transient=True, disable=not console.err.is_terminal
    ) as bar:
        task: TaskID | None = None

        def report(step: StartProgress) -> None:
            nonlocal printed_s, task
            if not console.err.is_terminal:
                if time.monotonic() - printed_s > PRINT_EVERY_S:
                    printed_s = time.monotonic()
                    console.say(f"{step.doing}: {step.step} of {step.steps}")
                return
            if task is None:
                task = bar.add_task(step.doing, total=step.steps)
            bar.update(task, description=step.doing, completed=step.step, total=step.steps)

        yield report


@cluster.command("status")
@name_option_or_argument
@output_option
def status_command(*, name: str | None, output: str) -> None:
    """Show the clusters and single nodes that run on this machine."""
    found = list_entries() if name is None else [find_entry(name)]
    if output == "json":
        console.print_json([_entry_json(entry) for entry in found])
        return
    if not found:
        console.say("no cluster is running; start one with shoal cluster up")
    for entry in found:
        remote = open_remote_cluster(entry)
        console.print_line((entry.name, "bold"), f" ({entry.engine})  {remote.bootstrap}")
        table = console.SafeTable(box=None, show_header=False, padding=(0, 2))
        for node in remote.nodes():
            shown = Text(node.state, STATE_STYLES[node.state])
            process = f"pid {node.pid}" if node.pid else ""
            role = "" if node.role == "broker" else node.role
            table.add_row(str(node.id), shown, f"{node.host}:{node.port}", process, role)
        console.print_table(table)
        for node in remote.nodes():
            _print_health(node)
        _print_quorum(remote.quorum())


def _print_health(node: RemoteNode) -> None:
    """Print the offline replicas of a node, and its failed background work."""
    for partition, reason in node.offline.items():
        where = f" {partition} on {node.role} {node.id}: {reason}"
        console.print_line(("offline", "red"), where)
    if node.offline_count > len(node.offline):
        left = node.offline_count - len(node.offline)
        where = f" {left} more replicas on {node.role} {node.id}"
        console.print_line(("offline", "red"), where)
    for name, count in node.failures.items():
        times = "once" if count == 1 else f"{count} times"
        where = f" {name} on {node.role} {node.id}; see its log"
        console.print_line((f"failed {times}", "yellow"), where)


def _print_quorum(quorum: QuorumStatus | None) -> None:
    if quorum is None:
        return
    console.print_line(
        f"controller {quorum.leader} is active in epoch {quorum.epoch}, "
        f"{quorum.high_watermark} metadata records are committed"
    )
    table = console.SafeTable(box=None, show_header=False, padding=(0, 2))
    for role, members in (("voter", quorum.voters), ("observer", quorum.observers)):
        for member in members:
            table.add_row(
                str(member.id), role, f"at {member.log_end_offset}", f"{member.lag} behind"
            )
    console.print_table(table)


def _entry_json(entry: RegistryEntry) -> dict[str, Any]:
    remote = open_remote_cluster(entry)
    return {
        "name": entry.name,
        "engine": entry.engine,
        "bootstrap": remote.bootstrap,
        "owner": entry.owner.pid,
        "nodes": [to_plain(node) for node in remote.nodes()],
        "quorum": None if (quorum := remote.quorum()) is None else to_plain(quorum),
    }


def _add_node_command(action: str, description: str) -> None:
    @cluster.command(action, help=description)
    @click.argument("node_id", type=int)
    @name_option
    def command(*, node_id: int, name: str | None) -> None:
        act_on_cluster(name, action, node_id)


_add_node_command("kill", "Kill a node (SIGKILL).")
_add_node_command("stop", "Shut a node down gracefully (SIGTERM): it moves its leaderships first.")
_add_node_command(
    "pause", "Pause a node (SIGSTOP): its connections stay open, but it does not answer."
)
_add_node_command("resume", "Resume a paused node (SIGCONT).")
_add_node_command(
    "restart", "Start a node again, with its port and data; stop it first if it is running."
)
_add_node_command(
    "remove", "Move a broker's replicas to the other brokers, then remove it from the cluster."
)


@cluster.command("add")
@name_option_or_argument
def add_command(*, name: str | None) -> None:
    """Add a broker; it gets its share of the replicas."""
    added = act_on_cluster(name, "add")
    console.say(f"node {added['node']} is ready")
    sys.stdout.write(f"bootstrap.servers={added['bootstrap']}\n")


@cluster.command("trace")
@name_option_or_argument
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of a cluster, which need not be running.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output file.  [default: standard output]",
)
def trace_command(*, name: str | None, directory: Path | None, output: Path | None) -> None:
    """Merge the event logs of a cluster that was started with --trace.

    The result has the events of all nodes with vector clocks; ShiViz shows it.
    """
    from shoal.lite.testing.trace.shiviz import merge_trace

    if directory is None:
        entry = registry.find(name)
        if entry.engine != "lite" or entry.directory is None:
            raise UsageError(
                f"cluster {entry.name} is not a Kafka Lite, and only Kafka Lite can be traced"
            )
        directory = Path(entry.directory)
    text = merge_trace(directory)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.say(f"wrote {output}; open it with ShiViz")


@cluster.command("down")
@name_option_or_argument
def down_command(*, name: str | None) -> None:
    """Stop a cluster."""
    act_on_cluster(name, "down")
