"""`shoal broker` and `shoal controller`: one node of a cluster that spans several hosts.

Each runs in the foreground until Ctrl-C or SIGTERM, and ends cleanly then. Options can stand in a
file too, as lines of key=value with the same names (`controllers=1@a:9093,2@b:9093`); what is said
on the command line counts more. All other keys in the file are settings of Apache Kafka.
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
from shoal.cli.shared.options import properties_of
from shoal.lite.base.configs import check_properties
from shoal.lite.base.dial import Peer
from shoal.lite.base.spec import BrokerSpec, ControllerSpec, check_advertised
from shoal.lite.nodes.broker import run_broker
from shoal.lite.nodes.controller import run_controller
from shoal.model.errors import SystemFailure, UsageError

_NAMES = ("id", "dir", "listen", "advertise", "controllers", "cluster-id")
_MOST_PORT = 65535
_MOST_ID = 2**31 - 1
Command = Callable[..., Any]


def _node_options(command: Command) -> Command:
    options = (
        click.option("--id", "node_id", type=int, help="Its id, unique among all nodes."),
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path, file_okay=False),
            help="Its data; one process at a time.",
        ),
        click.option("--listen", metavar="HOST:PORT", help="Where it listens."),
        click.option(
            "--advertise",
            metavar="HOST",
            help="What others are told to connect to.  [default: the host of --listen]",
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
            help="A file with these options, and with settings.",
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
def broker(**given: Any) -> None:
    """One broker of a cluster that spans several hosts.

    \b
    shoal broker --id 1 --dir data/b1 --listen 0.0.0.0:9092 --advertise host-a
        --controllers 101@host-a:9093,102@host-b:9093,103@host-c:9093 --cluster-id east
    """
    options = _Options(**given)
    if options.node_id in {peer.node_id for peer in options.controllers}:
        raise UsageError(f"a controller has the id {options.node_id} too", remedy="choose another")
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
        console.say(f"broker {spec.broker_id} serves {spec.advertised_host}:{port}", "green")

    _run(run_broker(spec, on_ready=on_ready))


@click.command()
@_node_options
@click.option(
    "--replace",
    "may_replace",
    is_flag=True,
    help="Its disk was lost: take the vote of that disk, and join with this one.",
)
def controller(*, may_replace: bool, **given: Any) -> None:
    """One controller of a cluster that spans several hosts.

    The first start needs all controllers that are named; from then on a majority is enough.

    \b
    shoal controller --id 101 --dir data/c1 --listen host-a:9093
        --controllers 101@host-a:9093,102@host-b:9093,103@host-c:9093 --cluster-id east
    """
    options = _Options(**given)
    if options.node_id not in {peer.node_id for peer in options.controllers}:
        raise UsageError(
            f"controller {options.node_id} is not among --controllers",
            remedy="name all of them, this one too",
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

    _run(run_controller(spec, on_ready=on_ready))


def _run(node: Coroutine[Any, Any, None]) -> None:
    logging.getLogger("shoal.lite").setLevel(logging.INFO)

    async def until_ended() -> None:
        # Ctrl-C is as good as SIGTERM.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGINT, signal.raise_signal, signal.SIGTERM
        )
        await node

    try:
        asyncio.run(until_ended())
    except OSError as error:
        raise SystemFailure(f"the node has ended: {error}") from error
    console.say("ended")


class _Options:
    """What was said, on the command line and in the file."""

    def __init__(self, *, config: Path | None, properties: tuple[str, ...], **given: Any) -> None:
        said = {} if config is None else _read(config)
        names = {"id": "node_id", "dir": "directory", "cluster-id": "cluster_id"}
        for name in _NAMES:
            value = given[names.get(name, name)]
            if value is not None:
                said[name] = str(value)
        missing = [f"--{name}" for name in _NAMES if name not in said and name != "advertise"]
        if missing:
            raise UsageError(f"{', '.join(missing)}: a node needs that to be told")
        self.node_id = _node_id(said["id"], "--id")
        self.folder = str(Path(said["dir"]).absolute())
        self.listen = _address(said["listen"], "--listen")
        self.controllers = [_controller(one) for one in said["controllers"].split(",")]
        if len({peer.node_id for peer in self.controllers}) < len(self.controllers):
            raise UsageError("--controllers: two of them have the same id")
        self.cluster_id = said["cluster-id"]
        self.advertised_host = said.get("advertise", self.listen[0])
        check_advertised(self.advertised_host)
        rest = {name: value for name, value in said.items() if name not in _NAMES}
        self.properties = rest | properties_of(properties)
        check_properties(self.properties)


def _read(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text().split("\n")]
    return properties_of(tuple(line for line in lines if line and not line.startswith("#")))


def _controller(text: str) -> Peer:
    node_id, at, address = text.strip().partition("@")
    if not at:
        raise UsageError(
            f"{text!r} is no controller", remedy="write ID@HOST:PORT, and commas between them"
        )
    return Peer(_node_id(node_id, "--controllers"), *_address(address, "--controllers"))


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MOST_PORT:
        raise UsageError(f"{option}: {text!r} is no address", remedy="write HOST:PORT")
    return host.strip("[]"), int(port)


def _node_id(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_ID:
        raise UsageError(f"{option}: {text!r} is no id", remedy=f"write a number up to {_MOST_ID}")
    return int(text)
