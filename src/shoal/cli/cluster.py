"""`shoal cluster`: a Kafka cluster in this terminal, and its faults from another one.

`up` owns the cluster: it ends with the command, however that ends. `--detach` starts the same
command in the background and returns once the cluster can be used.
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
from typing import Any, Final

import rich_click as click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from shoal.cli.faults import fault
from shoal.cli.shared import console
from shoal.cli.shared.options import output_option, properties_of
from shoal.lite.base.spec import MOST_BROKERS
from shoal.lite.cluster import LiteCluster, QuorumStatus
from shoal.lite.metadata.rules.profiles import PROFILES
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.serialised import to_plain
from shoal.systems import registry
from shoal.systems.apache.ivy import Progress as Step
from shoal.systems.apache.ivy import Report
from shoal.systems.clusters import ENGINES, Cluster, make_cluster
from shoal.systems.registry import Entry
from shoal.systems.remote import RemoteNode, remote

DETACH_TIMEOUT_S: Final = 300.0
SPEAK_EVERY_S: Final = 5.0
LOOK_EVERY_S: Final = 0.5
STATE_STYLES = {"running": "green", "paused": "yellow", "starting": "yellow", "down": "red"}


@click.group()
def cluster() -> None:
    """A Kafka cluster on this machine: ours, or Apache's.

    \b
    shoal cluster up                     Kafka Lite, until Ctrl-C
    shoal cluster up --brokers 3         with replicas and fail-over
    shoal cluster up --brokers 3 --controllers 3
                                         no process whose death stops it
    shoal cluster up --engine apache     a real Apache Kafka, with no Docker
    shoal cluster up --detach --name t1  in the background
    shoal cluster kill 1                 as a fault, from another terminal
    shoal cluster restart 1
    shoal cluster add                    one more broker, with its share of the replicas
    shoal cluster fault cut 1 2          links, disks and requests that go wrong
    shoal cluster trace t1               what happened before what, for ShiViz
    shoal cluster down t1
    """


cluster.add_command(fault)


@cluster.command("up")
@click.option("--engine", type=click.Choice(ENGINES), default="lite", show_default=True)
@click.option(
    "--brokers",
    type=click.IntRange(1, MOST_BROKERS),
    help="How many.  [default: as many as the folder has, or 1]",
)
@click.option(
    "--controllers",
    type=click.IntRange(1, 9),
    help="Kafka Lite: so many controllers as processes of their own; 3 survive the death of one, "
    "2 of none.  "
    "[default: as the folder has, or one inside the supervisor]",
)
@click.option(
    "--advertise",
    metavar="HOST",
    help="Kafka Lite: listen on all addresses, and tell clients to connect to this host.",
)
@click.option("--name", help="A name for status, kill and down.  [default: made up]")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the data here and start from it again.  [default: a temporary folder]",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="Kafka Lite: how many replicas must have a record before it is acknowledged: all of them "
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
    help="Kafka Lite: write down what happened before what, for `shoal cluster trace`.",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
def up_command(*, properties: tuple[str, ...], detach: bool, **wanted: Any) -> None:
    """Start a cluster and print its bootstrap line."""
    if detach:
        _start_in_background(
            [argument for argument in sys.argv[1:] if argument not in {"-d", "--detach"}]
        )
        return
    started = time.monotonic()
    wanted["name"] = wanted["name"] or registry.free_name(wanted["engine"])
    with _progress_bar() as report:
        system = make_cluster(properties=properties_of(properties), report=report, **wanted)
        system.start()
    try:
        registry.publish(system)
        _announce(system, time.monotonic() - started)
        _wait_for_the_end(system)
        console.say("stopping")
    finally:
        registry.withdraw(system.name)
        system.stop()


def _announce(system: Cluster, seconds: float) -> None:
    console.say(f"cluster {system.name} ({system.engine}) is ready after {seconds:.1f} s", "green")
    # Standard output carries this one line only, so that a script can take it as it is.
    sys.stdout.write(f"bootstrap.servers={system.bootstrap}\n")
    sys.stdout.flush()
    console.say(f"  kcat -b {system.bootstrap} -L")
    console.say(f"  shoal cluster down {system.name}    (or Ctrl-C here)")


def _wait_for_the_end(system: Cluster) -> None:
    """Returns on Ctrl-C, SIGTERM or a closed terminal; `UnreachableError` if the cluster ends."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        while True:
            time.sleep(LOOK_EVERY_S)
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
                console.say(f"cluster {entry.name} runs in the background")
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
    """A bar for downloads on a terminal; elsewhere a line now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    spoken = 0.0
    with Progress(
        *columns, console=console.err, transient=True, disable=not console.err.is_terminal
    ) as bar:
        task: TaskID | None = None

        def report(step: Step) -> None:
            nonlocal spoken, task
            if not console.err.is_terminal:
                if time.monotonic() - spoken > SPEAK_EVERY_S:
                    spoken = time.monotonic()
                    console.say(f"{step.doing}: {step.step} of {step.steps}")
                return
            if task is None:
                task = bar.add_task(step.doing, total=step.steps)
            bar.update(task, description=step.doing, completed=step.step, total=step.steps)

        yield report


@cluster.command("status")
@click.argument("name", required=False)
@output_option
def status_command(*, name: str | None, output: str) -> None:
    """Clusters that run on this machine, and their nodes."""
    found = registry.entries() if name is None else [registry.find(name)]
    if output == "json":
        console.print_json([_entry_json(entry) for entry in found])
        return
    if not found:
        console.say("no cluster is running; shoal cluster up starts one")
    for entry in found:
        seen = remote(entry)
        console.out.print(f"[bold]{entry.name}[/] ({entry.engine})  {seen.bootstrap}")
        table = Table(box=None, show_header=False, padding=(0, 2))
        for node in seen.nodes():
            shown = f"[{STATE_STYLES[node.state]}]{node.state}[/]"
            process = f"pid {node.pid}" if node.pid else ""
            role = "" if node.role == "broker" else node.role
            table.add_row(str(node.id), shown, f"{node.host}:{node.port}", process, role)
        console.out.print(table)
        for node in seen.nodes():
            _print_health(node)
        _print_quorum(seen.quorum())


def _print_health(node: RemoteNode) -> None:
    """Replicas that are offline at a node, and background work that failed there."""
    for partition, reason in node.offline.items():
        console.out.print(f"[red]offline[/] {partition} at {node.role} {node.id}: {reason}")
    if node.offline_count > len(node.offline):
        left = node.offline_count - len(node.offline)
        console.out.print(f"[red]offline[/] {left} more replicas at {node.role} {node.id}")
    for name, count in node.failures.items():
        times = "once" if count == 1 else f"{count} times"
        console.out.print(
            f"[yellow]failed {times}[/] {name} at {node.role} {node.id}; its log has the error"
        )


def _print_quorum(quorum: QuorumStatus | None) -> None:
    if quorum is None:
        return
    console.out.print(
        f"controller {quorum.leader} is active in epoch {quorum.epoch}, "
        f"{quorum.high_watermark} records of metadata are committed"
    )
    table = Table(box=None, show_header=False, padding=(0, 2))
    for role, members in (("voter", quorum.voters), ("observer", quorum.observers)):
        for member in members:
            table.add_row(
                str(member.id), role, f"at {member.log_end_offset}", f"{member.lag} behind"
            )
    console.out.print(table)


def _entry_json(entry: Entry) -> dict[str, Any]:
    seen = remote(entry)
    return {
        "name": entry.name,
        "engine": entry.engine,
        "bootstrap": seen.bootstrap,
        "owner": entry.owner.pid,
        "nodes": [to_plain(node) for node in seen.nodes()],
        "quorum": None if (quorum := seen.quorum()) is None else to_plain(quorum),
    }


def _on_node(action: str, description: str) -> None:
    @cluster.command(action, help=description)
    @click.argument("node_id", type=int)
    @click.option("--name", help="The cluster, if several run.")
    def command(*, node_id: int, name: str | None) -> None:
        entry = registry.find(name)
        getattr(remote(entry), action)(node_id)
        console.say(f"{action}: node {node_id} of {entry.name}")


_on_node("kill", "End a node at once (SIGKILL).")
_on_node("stop", "End a node cleanly (SIGTERM): it gives its leaderships away first.")
_on_node("pause", "Freeze a node (SIGSTOP): it stays connected and answers nothing.")
_on_node("resume", "Let a frozen node go on (SIGCONT).")
_on_node(
    "restart", "Start a node again, on its port and with its data; one that runs is stopped first."
)
_on_node("remove", "Move a broker's replicas to the others, then end it for good.")


@cluster.command("add")
@click.argument("name", required=False)
def add_command(*, name: str | None) -> None:
    """Start one more broker; it is given its share of the replicas."""
    entry = registry.find(name)
    seen = remote(entry)
    node_id = seen.add()
    console.say(f"node {node_id} of {entry.name} serves")
    sys.stdout.write(f"bootstrap.servers={seen.bootstrap}\n")


@cluster.command("trace")
@click.argument("name", required=False)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of a cluster, also of one that does not run.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write it here.  [default: print it]",
)
def trace_command(*, name: str | None, directory: Path | None, output: Path | None) -> None:
    """What happened before what in a cluster that was started with --trace.

    One file of the logs of all nodes, with vector clocks, that ShiViz draws.
    """
    from shoal.lite.testing.trace.shiviz import merged_trace

    if directory is None:
        entry = registry.find(name)
        if entry.directory is None:
            raise UsageError(f"{entry.name} is no Kafka Lite", remedy="only Kafka Lite is traced")
        directory = Path(entry.directory)
    text = merged_trace(directory)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
        console.say(f"{output}: open it with ShiViz")


@cluster.command("down")
@click.argument("name", required=False)
def down_command(*, name: str | None) -> None:
    """Stop a cluster."""
    entry = registry.find(name)
    entry.down()
    console.say(f"cluster {entry.name} is down")
