"""`shoal cluster fault`: what goes wrong on purpose in a Kafka Lite, until it is healed."""

from typing import Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.options import SIZE, output_option
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import UsageError
from shoal.systems import registry
from shoal.systems.remote import remote
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code

_name_option = click.option("--name", help="The cluster, if several run.")
_one_way_option = click.option(
    "--one-way", is_flag=True, help="Only from the first to the second; else both ways."
)


@click.group("fault")
def fault() -> None:
    """Cut links, fail disks and requests of a Kafka Lite, and heal them.

    \b
    shoal cluster fault cut 1 2                    nothing gets through between the two
    shoal cluster fault slow 1 2 --delay-ms 200 --bytes-per-s 1MB
    shoal cluster fault reset 1 2                  connections end, and are made again
    shoal cluster fault disk 3 --writes ENOSPC
    shoal cluster fault request 1 PRODUCE --times 3 --error NOT_ENOUGH_REPLICAS
    shoal cluster fault list
    shoal cluster fault heal                       all of it
    """


def _lite(name: str | None) -> LiteCluster:
    return remote(registry.find(name)).lite()


@fault.command("cut")
@click.argument("source", type=int)
@click.argument("target", type=int)
@_one_way_option
@_name_option
def cut_command(*, source: int, target: int, one_way: bool, name: str | None) -> None:
    """Let nothing through between two nodes; connections stall and are not reset."""
    _lite(name).cut_link(source, target, one_way=one_way)
    console.say(f"cut: {source} {'→' if one_way else '↔'} {target}")


@fault.command("slow")
@click.argument("source", type=int)
@click.argument("target", type=int)
@click.option("--delay-ms", type=click.IntRange(1), help="Everything comes so much later.")
@click.option("--bytes-per-s", type=SIZE, help="So much passes in a second.")
@_one_way_option
@_name_option
def slow_command(
    *, source: int, target: int, one_way: bool, name: str | None, **slow: int | None
) -> None:
    """Let everything between two nodes come later, or little of it pass."""
    found = {key: value for key, value in slow.items() if value}
    if not found:
        raise UsageError("nothing is slow about that link", remedy="say --delay-ms 200, for one")
    _lite(name).slow_link(source, target, one_way=one_way, **found)
    said = ", ".join(f"{key} {value}" for key, value in found.items())
    console.say(f"slow ({said}): {source} {'→' if one_way else '↔'} {target}")


@fault.command("reset")
@click.argument("source", type=int)
@click.argument("target", type=int)
@_name_option
def reset_command(*, source: int, target: int, name: str | None) -> None:
    """End the connections between two nodes with a TCP reset; they may connect again."""
    _lite(name).reset_link(source, target)
    console.say(f"reset: {source} ↔ {target}")


@fault.command("isolate")
@click.argument("node_id", type=int)
@_name_option
def isolate_command(*, node_id: int, name: str | None) -> None:
    """Cut a node off from all others."""
    _lite(name).isolate(node_id)
    console.say(f"isolated: node {node_id}")


@fault.command("disk")
@click.argument("node_id", type=int)
@click.option("--reads", metavar="ERROR", help="Reads of logs fail with EIO, …")
@click.option("--writes", metavar="ERROR", help="Writes fail with EIO, ENOSPC, …")
@click.option("--syncs", metavar="ERROR", help="So does forcing what was written to the disk.")
@click.option(
    "--delay-ms", type=click.FloatRange(0), default=0.0, help="Each takes so much longer."
)
@click.option("--room-bytes", type=click.IntRange(0), help="So much fits, then it is full.")
@_name_option
def disk_command(*, node_id: int, name: str | None, **fault: Any) -> None:
    """Let the disk of a node fail, be slow, or run full."""
    if not any(value not in (None, 0.0) for value in fault.values()):
        raise UsageError("nothing is wrong with that disk", remedy="say --writes EIO, for one")
    _lite(name).fail_disk(node_id, **fault)
    console.say(f"disk of node {node_id}: {fault}")


@fault.command("request")
@click.argument("node_id", type=int)
@click.argument("api", metavar="API")
@click.option("--times", type=click.IntRange(1), default=1, show_default=True)
@click.option("--error", metavar="CODE", help="Answer with this error, by name or number.")
@click.option("--lose-answer", is_flag=True, help="Do it, and hang up in place of an answer.")
@click.option("--client-id", help="Only of this client.")
@_name_option
def request_command(
    *, node_id: int, api: str, error: str | None, name: str | None, **options: Any
) -> None:
    """Let the next requests of an API go wrong; without an option by hanging up."""
    code = None if error is None else _value(Code, error)
    _lite(name).fail_requests(node_id, _value(ApiKey, api), error=code, **options)
    console.say(f"the next {options['times']} {api} to node {node_id} will fail")


@fault.command("task")
@click.argument("node_id", type=int)
@click.argument("task")
@_name_option
def task_command(*, node_id: int, task: str, name: str | None) -> None:
    """Let a background task fail once: 'log cleaner', 'housekeeping', 'heartbeat', …"""
    _lite(name).fail_task(node_id, task)
    console.say(f"{task} of node {node_id} has failed")


@fault.command("move-leader")
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("node_id", type=int)
@_name_option
def move_leader_command(*, topic: str, partition: int, node_id: int, name: str | None) -> None:
    """Let another replica lead, which must be in sync."""
    _lite(name).move_leader(topic, partition, node_id)
    console.say(f"{topic}-{partition}: node {node_id} leads")


@fault.command("shrink-in-sync")
@click.argument("topic")
@click.argument("partition", type=int)
@click.argument("node_id", type=int)
@_name_option
def shrink_command(*, topic: str, partition: int, node_id: int, name: str | None) -> None:
    """Take a follower out of the in-sync set; it comes back when it may."""
    _lite(name).shrink_in_sync(topic, partition, node_id)
    console.say(f"{topic}-{partition}: node {node_id} is out of sync")


def _value(names: type[Code] | type[ApiKey], word: str) -> int:
    """A number, or the number behind a name of Kafka's."""
    try:
        return int(word) if word.lstrip("-").isdigit() else int(names[word.upper()])
    except KeyError:
        some = ", ".join(list(names.__members__)[:4])
        raise UsageError(f"{word!r} is not known", remedy=f"{some}, …") from None


@fault.command("list")
@_name_option
@output_option
def list_command(*, name: str | None, output: str) -> None:
    """Everything that is wrong on purpose."""
    found = _lite(name).faults()
    if output == "json":
        console.print_json(found)
        return
    if not found:
        console.say("nothing is wrong on purpose")
    for one in found:
        details = " ".join(f"{key}={value}" for key, value in one.items() if key != "kind")
        console.out.print(f"{one['kind']}: {details}")


@fault.command("heal")
@_name_option
def heal_command(*, name: str | None) -> None:
    """End all faults."""
    _lite(name).heal()
    console.say("healed")
