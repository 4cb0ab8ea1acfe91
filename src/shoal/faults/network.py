"""The links of a run: whose connections go through the proxy, and what is in their way.

Rules of this file:
- Clients are told proxies' addresses: at first as their bootstrap servers, then in every
  answer of the brokers that goes through the proxy (`addresses`). Each client has routes of
  its own, so that it is known who calls.
- Brokers of Apache Kafka are told proxies' addresses of each other by what they advertise to
  brokers; who calls is read from the client id of a connection's first request. Between the
  nodes of a Kafka Lite the nodes themselves do what is asked of a link (`NodeLinks`).
- Whoever has not been let in by `enter` (scans, administrators) is not touched by anything.
- The proxy runs in a thread of its own; all methods may be called from any other.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from shoal.faults.addresses import AddressTranslator, NodeGreeter
from shoal.faults.zones import Zones
from shoal.model.errors import ConfigError, UsageError
from shoal.net.loops import call_in
from shoal.net.proxy import HOST, Proxy, Route
from shoal.net.ways import Effect, Names, together
from shoal.runtime.tasks import report_unhandled_errors, start_thread

CALL_LIMIT_S: Final = 60.0
_PLAIN: Final = ("PLAINTEXT", "SASL_PLAINTEXT")

_Result = TypeVar("_Result")


class NodeLinks(Protocol):
    """Links between the nodes of one cluster that the nodes themselves can hinder."""

    def node_ids(self) -> Sequence[int]: ...

    def set_link(self, source: int, target: int, effect: Effect) -> None:
        """What one direction is like from now on."""

    def reset_link(self, one: int, two: int) -> None:
        """End the connections between two nodes."""


def refuse_encrypted(cluster: str, client: Mapping[str, str]) -> None:
    """Links to a cluster can be hindered only where clients speak plain text to it."""
    protocol = client.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PLAIN:
        raise ConfigError(
            f"links to {cluster} cannot be hindered: its clients use {protocol}, and a proxy "
            "cannot rewrite the addresses in what it cannot read",
            remedy="use a plain-text listener, or leave out faults of links and zones",
        )


class Network:
    """A running proxy, and the names of everybody who is connected by it."""

    def __init__(self, zones: Zones | None = None) -> None:
        self._zones = zones or Zones()
        self._proxy: Proxy
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event
        self._routes: dict[tuple[Names, str, int], Route] = {}
        self._node_links: dict[str, NodeLinks] = {}
        self._told: dict[tuple[str, int, int], Effect] = {}
        self._telling = threading.Lock()

    # Starting and stopping

    def start(self) -> Self:
        if self._thread is not None:
            raise UsageError("the network was started before")
        started: Future[None] = Future()

        def on_failure(error: Exception) -> None:
            # Later calls see that the thread has ended.
            if not started.done():
                started.set_exception(error)

        self._thread = start_thread(
            "network", lambda: asyncio.run(self._main(started)), on_failure=on_failure
        )
        started.result(CALL_LIMIT_S)
        for source, target, effect in self._zones.effects():
            self.hinder([source], [target], effect)
        return self

    def stop(self) -> None:
        """End all connections; calling it again does nothing."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _main(self, started: "Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        report_unhandled_errors(self._loop)
        self._proxy = Proxy()
        self._end = asyncio.Event()
        started.set_result(None)
        await self._end.wait()
        await self._proxy.close()

    def _call(self, function: Callable[[], _Result]) -> _Result:
        if self._thread is None or not self._thread.is_alive():
            raise UsageError("the network does not run")
        return call_in(self._loop, function, limit_s=CALL_LIMIT_S)

    # Who is connected

    def enter(self, names: Sequence[str], cluster: str, bootstrap: str) -> str:
        """Bootstrap servers for a client that goes by these names, nearest first."""
        caller = self._zones.named(*names)

        def routed() -> str:
            return ",".join(
                f"{HOST}:{self._route(caller, cluster, _address(server)).port}"
                for server in bootstrap.split(",")
            )

        return self._call(routed)

    def advertised(self, cluster: str, node_id: int, port: int) -> int:
        """The port under which other brokers are to reach this one, which listens on `port`."""
        route = Route(
            (HOST, port),
            self.node_names(cluster, node_id),
            greeter=NodeGreeter(
                lambda caller: self.node_names(cluster, caller), stranger=frozenset({cluster})
            ),
        )
        return self._call(lambda: self._proxy.open(route))

    def join(self, cluster: str, nodes: NodeLinks) -> None:
        """From now on these nodes do themselves what is asked of the links between them."""
        self._node_links[cluster] = nodes
        self._tell_nodes()

    def node_names(self, cluster: str, node_id: int) -> Names:
        return self._zones.named(f"{cluster}/{node_id}", cluster)

    def _route(
        self, caller: Names, cluster: str, address: tuple[str, int], node_id: int | None = None
    ) -> Route:
        key = (caller, *address)
        route = self._routes.get(key)
        if route is None:
            names = frozenset({cluster})
            route = Route(
                address,
                names,
                caller=caller,
                translator=lambda: AddressTranslator(
                    lambda node, host, port: (
                        HOST,
                        self._route(caller, cluster, (host, port), node).port,
                    )
                ),
            )
            self._proxy.open(route)
            self._routes[key] = route
        if node_id is not None:
            named = self.node_names(cluster, node_id)
            if route.target_names != named:
                route.target_names = named
                self._proxy.look_again()
        return route

    # What is in the way

    def hinder(
        self, sources: Collection[str], targets: Collection[str], effect: Effect
    ) -> list[int]:
        number = self._call(lambda: self._proxy.hinder(sources, targets, effect))
        self._tell_nodes()
        return [number]

    def relieve(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._call(lambda number=number: self._proxy.relieve(number))  # type: ignore[misc]
        self._tell_nodes()

    def reset(self, sources: Collection[str], targets: Collection[str]) -> None:
        self._call(lambda: self._proxy.reset(sources, targets))
        ends = frozenset(sources), frozenset(targets)
        for cluster, nodes in self._node_links.items():
            for one, two in itertools.combinations(nodes.node_ids(), 2):
                names = self.node_names(cluster, one), self.node_names(cluster, two)
                if any(ends[0] & a and ends[1] & b for a, b in (names, names[::-1])):
                    nodes.reset_link(one, two)

    def _tell_nodes(self) -> None:
        """Bring the links between nodes that mind them themselves up to date."""
        with self._telling:
            for cluster, nodes in self._node_links.items():
                ids = list(nodes.node_ids())
                for source, target in itertools.permutations(ids, 2):
                    self._tell(cluster, nodes, source, target)

    def _tell(self, cluster: str, nodes: NodeLinks, source: int, target: int) -> None:
        names = self.node_names(cluster, source), self.node_names(cluster, target)
        found = self._call(lambda: self._proxy.hindrances.between(*names, born=0))
        wanted = together(one.effect for one in found)
        if self._told.get((cluster, source, target), Effect()) != wanted:
            nodes.set_link(source, target, wanted)
            self._told[cluster, source, target] = wanted


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{server!r:.80} is no address", remedy="write it like kafka1:9092")
    return host.strip("[]"), int(port)
