"""The network of a run: which connections go through the proxy, and the faults on them.

Rules of this file:
- Clients get addresses of the proxy: first as bootstrap servers, then in every broker response
  that passes the proxy (`addresses`). Each client has its own routes, so that the proxy knows
  which client opened a connection.
- Brokers of Apache Kafka reach each other through the proxy because they advertise its ports to
  other brokers; the client id of a connection's first request identifies the calling broker. The
  nodes of Kafka Lite apply the faults on links between them themselves (`NodeLinkControl`).
- Faults do not affect clients that were not added by `add_client` (scans, administrators).
- The proxy runs in its own thread; all methods may be called from any thread.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, Self, TypeVar

from shoal.faults.addresses import AddressRewriter, NodeIdentifier
from shoal.faults.zones import Zones
from shoal.model.errors import ConfigError, UsageError
from shoal.net.link_faults import NO_EFFECT, EndpointNames, LinkEffect, combine_effects
from shoal.net.loops import call_in
from shoal.net.proxy import HOST, Proxy, ProxyRoute
from shoal.runtime.context_managers import StopsOnExit
from shoal.runtime.tasks import report_unhandled_errors, start_thread

CALL_TIMEOUT_S: Final = 60.0
_PLAIN: Final = ("PLAINTEXT", "SASL_PLAINTEXT")

_Result = TypeVar("_Result")


class NodeLinkControl(Protocol):
    """Links between the nodes of one cluster, on which the nodes themselves apply faults."""

    def node_ids(self) -> Sequence[int]: ...

    def set_link(self, source: int, target: int, effect: LinkEffect) -> None:
        """Set the effect on one direction of a link; it replaces the previous one."""

    def reset_link(self, one: int, two: int) -> None:
        """Reset the connections between two nodes."""


def refuse_encrypted_clients(cluster: str, client: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the clients of a cluster encrypt: the proxy cannot rewrite that."""
    protocol = client.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PLAIN:
        raise ConfigError(
            f"faults on links to {cluster} are not possible: its clients use {protocol}, and the "
            "proxy cannot rewrite broker addresses in encrypted responses",
            remedy="use a plain-text listener, or remove link faults and zones",
        )


class ProxyNetwork(StopsOnExit):
    """A running proxy, and the names of the endpoints that it connects."""

    def __init__(self, zones: Zones | None = None) -> None:
        self._zones = zones or Zones()
        self._proxy: Proxy
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event
        self._routes: dict[tuple[EndpointNames, str, int], ProxyRoute] = {}
        self._node_links: dict[str, NodeLinkControl] = {}
        self._node_effects: dict[tuple[str, int, int], LinkEffect] = {}
        self._node_links_lock = threading.Lock()

    # Starting and stopping

    def start(self) -> Self:
        if self._thread is not None:
            raise UsageError("the network is already started")
        started: Future[None] = Future()

        def on_failure(error: Exception) -> None:
            # Later calls notice that the thread has ended.
            if not started.done():
                started.set_exception(error)

        self._thread = start_thread(
            "network", lambda: asyncio.run(self._main(started)), on_failure=on_failure
        )
        started.result(CALL_TIMEOUT_S)
        for source, target, effect in self._zones.effects():
            self.add_fault([source], [target], effect)
        return self

    def stop(self) -> None:
        """Close all connections; calling it again has no effect."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

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
            raise UsageError("the network is not running")
        return call_in(self._loop, function, limit_s=CALL_TIMEOUT_S)

    # Endpoints

    def add_client(self, names: Sequence[str], cluster: str, bootstrap: str) -> str:
        """Add a client with these names, the most specific first; returns its bootstrap servers."""
        caller = self._zones.with_zone(*names)

        def open_routes() -> str:
            return ",".join(
                f"{HOST}:{self._route(caller, cluster, _address(server)).port}"
                for server in bootstrap.split(",")
            )

        return self._call(open_routes)

    def open_broker_port(self, cluster: str, node_id: int, port: int) -> int:
        """Open a proxy port for a broker that listens on `port`; other brokers must use it."""
        route = ProxyRoute(
            (HOST, port),
            self.node_names(cluster, node_id),
            caller_identifier=NodeIdentifier(
                lambda caller: self.node_names(cluster, caller), unknown_caller=frozenset({cluster})
            ),
        )
        return self._call(lambda: self._proxy.open(route))

    def attach_nodes(self, cluster: str, nodes: NodeLinkControl) -> None:
        """Let the nodes of a cluster apply the faults on links between them themselves."""
        self._node_links[cluster] = nodes
        self._update_node_links()

    def node_names(self, cluster: str, node_id: int) -> EndpointNames:
        return self._zones.with_zone(f"{cluster}/{node_id}", cluster)

    def _route(
        self,
        caller: EndpointNames,
        cluster: str,
        address: tuple[str, int],
        node_id: int | None = None,
    ) -> ProxyRoute:
        key = (caller, *address)
        route = self._routes.get(key)
        if route is None:
            names = frozenset({cluster})
            route = ProxyRoute(
                address,
                names,
                caller=caller,
                rewriter=lambda: AddressRewriter(
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
                self._proxy.apply_faults()
        return route

    # Faults

    def add_fault(
        self, sources: Collection[str], targets: Collection[str], effect: LinkEffect
    ) -> list[int]:
        number = self._call(lambda: self._proxy.add_fault(sources, targets, effect))
        self._update_node_links()
        return [number]

    def remove_faults(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._call(lambda number=number: self._proxy.remove_fault(number))  # type: ignore[misc]
        self._update_node_links()

    def reset(self, sources: Collection[str], targets: Collection[str]) -> None:
        self._call(lambda: self._proxy.reset(sources, targets))
        ends = frozenset(sources), frozenset(targets)
        for cluster, nodes in self._node_links.items():
            for one, two in itertools.combinations(nodes.node_ids(), 2):
                names = self.node_names(cluster, one), self.node_names(cluster, two)
                if any(ends[0] & a and ends[1] & b for a, b in (names, names[::-1])):
                    nodes.reset_link(one, two)

    def _update_node_links(self) -> None:
        """Send changed effects to the nodes that apply them themselves."""
        with self._node_links_lock:
            for cluster, nodes in self._node_links.items():
                ids = list(nodes.node_ids())
                for source, target in itertools.permutations(ids, 2):
                    self._update_node_link(cluster, nodes, source, target)

    def _update_node_link(
        self, cluster: str, nodes: NodeLinkControl, source: int, target: int
    ) -> None:
        names = self.node_names(cluster, source), self.node_names(cluster, target)
        found = self._call(lambda: self._proxy.faults.between(*names, created_after=0))
        wanted = combine_effects(one.effect for one in found)
        if self._node_effects.get((cluster, source, target), NO_EFFECT) != wanted:
            nodes.set_link(source, target, wanted)
            self._node_effects[cluster, source, target] = wanted


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"{server!r:.80} is not a valid address", remedy="write it like kafka1:9092"
        )
    return host.strip("[]"), int(port)
