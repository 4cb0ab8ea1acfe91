"""`shoal cluster fault`: injects faults into a Kafka Lite, until they are healed."""

from typing import Any

import rich_click as click

from shoal.cli.cluster.names import name_option
from shoal.cli.shared import console
from shoal.cli.shared.acting import act_on_cluster
from shoal.cli.shared.options import SIZE, output_option
from shoal.control.cluster_actions import lite_of
from shoal.control.clusters import find_entry
from shoal.model.errors import UsageError
from shoal.systems.remote import open_remote_cluster

_one_way_option = click.option(
    "--one-way", is_flag=True, help="Only from SOURCE to TARGET, not in both directions."
)


@click.group("fault")
def fault() -> None:
    """Inject faults of links, disks and requests into a Kafka Lite, and heal them.

    \b
    shoal cluster fault cut 1 2                    drop all traffic between two nodes
    shoal cluster fault slow 1 2 --delay-ms 200 --bytes-per-s 1MB
    shoal cluster fault reset 1 2                  reset the connections; they reconnect
    shoal cluster fault disk 3 --writes ENOSPC
    shoal cluster fault request 1 PRODUCE --times 3 --error NOT_ENOUGH_REPLICAS
    shoal cluster fault list
    shoal cluster fault heal                       end all faults
    """


@fault.command("cut")
@click.argument("source", type=int)
@click.argument("target", type=int)
@_one_way_option
@name_option
def cut_command(*, source: int, target: int, one_way: bool, name: str | None) -> None:
    """Drop all traffic between two nodes; connections stall and are not reset."""
    act_on_cluster(name, "cut", source, target, one_way=one_way)


@fault.command("slow")
@click.argument("source", type=int)
@click.argument("target", type=int)
@click.option("--delay-ms", type=click.IntRange(1), help="Delay of all data.")
@click.option("--bytes-per-s", type=SIZE, help="Limit of the throughput.")
@_one_way_option
@name_option
def slow_command(
    *, source: int, target: int, one_way: bool, name: str | None, **slow: int | None
) -> None:
    """Delay the traffic between two nodes, or limit its throughput."""
    if not any(slow.values()):
        raise UsageError(
            "a slow link needs a delay or a limit", remedy="set --delay-ms 200 or --bytes-per-s 1MB"
        )
    act_on_cluster(name, "slow", source, target, one_way=one_way, **slow)


@fault.command("reset")
@click.argument("source", type=int)
@click.argument("target", type=int)
@name_option
def reset_command(*, source: int, target: int, name: str | None) -> None:
    """Reset the TCP connections between two nodes; they may reconnect."""
    act_on_cluster(name, "reset", source, target)


@fault.command("isolate")
@click.argument("node_id", type=int)
@name_option
def isolate_command(*, node_id: int, name: str | None) -> None:
    """Drop all traffic between a node and all others."""
    act_on_cluster(name, "cut", node_id)


@fault.command("disk")
@click.argument("node_id", type=int)
@click.option("--reads", metavar="ERROR", help="Error of reads of logs: EIO, …")
@click.option("--writes", metavar="ERROR", help="Error of writes: EIO, ENOSPC, …")
@click.option("--syncs", metavar="ERROR", help="Error of fsync: EIO, …")
@click.option("--delay-ms", type=click.FloatRange(0), default=0.0, help="Delay of each operation.")
@click.option(
    "--room-bytes", type=click.IntRange(0), help="Free space, after which writes fail with ENOSPC."
)
@name_option
def disk_command(*, node_id: int, name: str | None, **fault: Any) -> None:
    """Make the disk of a node fail, slow or full."""
    if not any(value not in (None, 0.0) for value in fault.values()):
        raise UsageError(
            "a disk fault needs at least one option", remedy="set --writes EIO, for example"
        )
    act_on_cluster(name, "disk", node_id, **fault)


@fault.command("request")
@click.argument("node_id", type=int)
@click.argument("api", metavar="API")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True)
@click.option("--error", metavar="CODE", help="Respond with this error, by name or number.")
@click.option(
    "--lose-answer",
    is_flag=True,
    help="Handle the request, then close the connection without a response.",
)
@click.option("--client-id", help="Only requests of this client.")
@name_option
def request_command(*, node_id: int, api: str, name: str | None, **options: Any) -> None:
    """Make the next requests of an API fail; without an option by closing the connection."""
    act_on_cluster(name, "request", node_id, api=api, **options)


@fault.command("task")
@click.argument("node_id", type=int)
@click.argument("task")
@name_option
def task_command(*, node_id: int, task: str, name: str | None) -> None:
    """Make a background task fail once: 'log cleaner', 'housekeeping', 'heartbeat', …"""
    act_on_cluster(name, "task", node_id, task=task)


@fault.command("move-leader")
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("node_id", type=int)
@name_option
def move_leader_command(*, topic: str, partition: int, node_id: int, name: str | None) -> None:
    """Move the leadership of a partition to another in-sync replica."""
    act_on_cluster(name, "move-leader", node_id, topic=topic, partition=partition)


@fault.command("shrink-in-sync")
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("node_id", type=int)
@name_option
def shrink_command(*, topic: str, partition: int, node_id: int, name: str | None) -> None:
    """Remove a follower from the in-sync replicas; it may rejoin when it has caught up."""
    act_on_cluster(name, "shrink-in-sync", node_id, topic=topic, partition=partition)


@fault.command("list")
@name_option
@output_option
def list_command(*, name: str | None, output: str) -> None:
    """List the active faults."""
    found = lite_of(open_remote_cluster(find_entry(name))).faults()
    if output == "json":
        console.print_json(found)
        return
    if not found:
        console.say("no active faults")
    for one in found:
        details = " ".join(f"{key}={value}" for key, value in one.items() if key != "kind")
        console.print_line(f"{one['kind']}: {details}")


@fault.command("heal")
@name_option
def heal_command(*, name: str | None) -> None:
    """End all faults."""
    act_on_cluster(name, "heal")
