"""`shoal broker` and `shoal controller`: one node of a cluster that spans several hosts.

Each runs in the foreground until Ctrl-C or SIGTERM, and then shuts down gracefully. Options can
also be in a file, as lines of key=value with the same names (`controllers=1@a:9093,2@b:9093`);
options on the command line override the file. All other keys in the file are settings of Apache
Kafka.
"""

import asyncio
import logging
import signal
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import rich_click as click

from shoal.cli.shared import console
from shoal.cli.shared.metrics_options import metrics_options, take_endpoint
from shoal.cli.shared.options import properties_of
from shoal.lite.base.configs import check_properties
from shoal.lite.base.dial import NodeAddress
from shoal.lite.base.spec import BrokerSpec, ControllerSpec, check_advertised
from shoal.lite.nodes.broker import run_broker
from shoal.lite.nodes.controller import run_controller
from shoal.model.errors import SystemFailure, UsageError
from shoal.runtime.os_errors import describe_os_error

_NAMES = ("id", "dir", "listen", "advertise", "controllers", "cluster-id")
_MAX_PORT = 65535
_MAX_ID = 2**31 - 1
Command = Callable[..., Any]


def _node_options(command: Command) -> Command:
    options = (
        click.option("--id", "node_id", type=int, help="Node id, unique among all nodes."),
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder for its data; only one process may use it.",
        ),
        click.option("--listen", metavar="HOST:PORT", help="Address on which it listens."),
        click.option(
            "--advertise",
            metavar="HOST",
            help="Host that other nodes and clients connect to.  [default: the host of --listen]",
        ),
        click.option(
            "--controllers",
            metavar="ID@HOST:PORT,…",
            help="All controllers of the cluster.",
        ),
        click.option("--cluster-id", help="The same for all nodes of a cluster."),
        click.option(
            "--config",
            "config",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="A file with these options and with broker settings.",
        ),
        click.option(
            "-X",
            "--property",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="Setting, as in server.properties; may be repeated.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_node_options
@metrics_options
def broker(**given: Any) -> None:
    """One broker of a cluster that spans several hosts.

    \b
    shoal broker --id 1 --dir data/b1 --listen 0.0.0.0:9092 --advertise host-a
        --controllers 101@host-a:9093,102@host-b:9093,103@host-c:9093 --cluster-id east
    """
    metrics = take_endpoint(given)
    options = _Options(**given)
    if options.node_id in {peer.node_id for peer in options.controllers}:
        raise UsageError(
            f"id {options.node_id} is already the id of a controller", remedy="choose another --id"
        )
    spec = BrokerSpec(
        broker_id=options.node_id,
        incarnation=uuid.uuid4().hex,
        folder=options.folder,
        host=options.listen[0],
        port=options.listen[1],
        advertised_host=options.advertised_host,
        cluster_id=options.cluster_id,
        controllers=options.controllers,
        properties=options.properties,
    )

    def on_ready(port: int) -> None:
        console.say(f"broker {spec.broker_id} listens on {spec.advertised_host}:{port}", "green")

    _run(run_broker(spec, on_ready=on_ready, metrics=metrics, is_single=True))


@click.command()
@_node_options
@click.option(
    "--replace",
    "may_replace",
    is_flag=True,
    help="Its disk was lost: remove the old voter, and join the quorum with the new disk.",
)
def controller(*, may_replace: bool, **given: Any) -> None:
    """One controller of a cluster that spans several hosts.

    The first start needs all controllers of --controllers; later starts need a majority.

    \b
    shoal controller --id 101 --dir data/c1 --listen host-a:9093
        --controllers 101@host-a:9093,102@host-b:9093,103@host-c:9093 --cluster-id east
    """
    options = _Options(**given)
    if options.node_id not in {peer.node_id for peer in options.controllers}:
        raise UsageError(
            f"controller {options.node_id} is not among --controllers",
            remedy="list all controllers, including this one",
        )
    spec = ControllerSpec(
        controller_id=options.node_id,
        folder=options.folder,
        host=options.listen[0],
        port=options.listen[1],
        cluster_id=options.cluster_id,
        controllers=options.controllers,
        properties=options.properties,
        advertised_host=options.advertised_host,
        may_replace=may_replace,
    )

    def on_ready(port: int) -> None:
        console.say(f"controller {spec.controller_id} listens on {spec.host}:{port}", "green")

    _run(run_controller(spec, on_ready=on_ready, is_single=True))


def _run(node: Coroutine[Any, Any, None]) -> None:
    logging.getLogger("shoal.lite").setLevel(logging.INFO)

    async def until_ended() -> None:
        # Ctrl-C shuts down like SIGTERM.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGINT, signal.raise_signal, signal.SIGTERM
        )
        await node

    try:
        asyncio.run(until_ended())
    except OSError as error:
        found = describe_os_error(error)
        raise SystemFailure(f"the node stopped: {found.message}", remedy=found.remedy) from error
    console.say("stopped")


class _Options:
    """The options of a node, from the command line and the file."""

    def __init__(self, *, config: Path | None, properties: tuple[str, ...], **given: Any) -> None:
        options = {} if config is None else _read(config)
        names = {"id": "node_id", "dir": "directory", "cluster-id": "cluster_id"}
        for name in _NAMES:
            value = given[names.get(name, name)]
            if value is not None:
                options[name] = str(value)
        missing = [f"--{name}" for name in _NAMES if name not in options and name != "advertise"]
        if missing:
            raise UsageError(
                f"missing options: {', '.join(missing)}",
                remedy="give them on the command line or in --config",
            )
        self.node_id = _node_id(options["id"], "--id")
        self.folder = str(Path(options["dir"]).absolute())
        self.listen = _address(options["listen"], "--listen")
        self.controllers = [_controller(one) for one in options["controllers"].split(",")]
        if len({peer.node_id for peer in self.controllers}) < len(self.controllers):
            raise UsageError("--controllers: two controllers have the same id")
        self.cluster_id = options["cluster-id"]
        self.advertised_host = options.get("advertise", self.listen[0])
        check_advertised(self.advertised_host)
        rest = {name: value for name, value in options.items() if name not in _NAMES}
        self.properties = rest | properties_of(properties)
        check_properties(self.properties)


def _read(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text().split("\n")]
    return properties_of(tuple(line for line in lines if line and not line.startswith("#")))


def _controller(text: str) -> NodeAddress:
    node_id, at, address = text.strip().partition("@")
    if not at:
        raise UsageError(
            f"--controllers: {text!r} is not ID@HOST:PORT",
            remedy="write --controllers ID@HOST:PORT,ID@HOST:PORT",
        )
    return NodeAddress(_node_id(node_id, "--controllers"), *_address(address, "--controllers"))


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise UsageError(f"{option}: {text!r} is not an address", remedy="write HOST:PORT")
    return host.strip("[]"), int(port)


def _node_id(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_ID:
        raise UsageError(f"{option}: {text!r} is not an id", remedy=f"use a number up to {_MAX_ID}")
    return int(text)
