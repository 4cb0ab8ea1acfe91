"""One broker: a process that serves clients.

It listens, answers requests by the API modules, and ends on SIGTERM, when its supervisor is gone
(the lifeline, a pipe that is never written to, closes), or when it is killed.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

from shoal.lite.api.api_18_api_versions import refuse_version
from shoal.lite.api.table import APIS
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import merge_request_clock, stamp_answer
from shoal.lite.base.hooks.request_faults import RequestFaults
from shoal.lite.base.hooks.request_log import RequestLog
from shoal.lite.base.spec import BrokerSpec
from shoal.lite.broker.connection import ClientConnection
from shoal.lite.broker.connection_limits import CHECK_INTERVAL_S, ConnectionLimiter
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, CloseConnection
from shoal.lite.broker.unserved import GROUP_REQUESTS
from shoal.lite.metadata.data.status import needs_unclean_election, why_offline
from shoal.lite.nodes.broker_metrics import BrokerCollector, BrokerGauges, collect_totals
from shoal.lite.nodes.cluster_metrics import collect_state, single_broker_port
from shoal.lite.nodes.node_events import view_broker, write_node_events
from shoal.lite.partitions.replicas import Replicas
from shoal.lite.testing.faults.answers import inject_fault
from shoal.lite.testing.faults.channel import NodeChannel
from shoal.net.ports import bind_port
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.tasks import RepeatingCall, call_every, report_unhandled_errors, run_awaited
from shoal.telemetry.http_port import EndpointSpec
from shoal.telemetry.samples import Chunk
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import decode_request_header

_BACKLOG = 1024
_MAX_ACCEPTS = 64
_ACCEPT_PAUSE_S = 1.0
_logger = logging.getLogger(__name__)


class BrokerServer:
    """A running broker. `start`, then `serve` until `stop`."""

    def __init__(self, spec: BrokerSpec) -> None:
        self.core = BrokerCore(spec, self.stop)
        self.request_faults = RequestFaults()
        self.port = 0
        self.frame_limit_bytes = self.core.layers.integer("socket.request.max.bytes")
        self._connections: set[ClientConnection] = set()
        self._connection_limits = ConnectionLimiter()
        self._request_log = RequestLog.of_environment()
        self._check_timer: RepeatingCall | None = None
        self._listener: socket.socket | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Bind the port and register with the controller; clients are served from then on."""
        spec = self.core.spec
        remedy = "stop the process that uses the port, or start the cluster in another folder"
        listener = self._listener = bind_port(spec.host, spec.port, remedy=remedy)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        await self.core.register(self.port)
        # Before it is unfenced: clients must find leaders at the address in the metadata.
        listener.listen(_BACKLOG)
        self._start_accepting()
        self._check_timer = call_every(
            "connection watch", lambda: CHECK_INTERVAL_S, self._check_connections
        )
        await self.core.wait_until_unfenced()

    async def start_unless_stopped(self) -> bool:
        """Run `start`; False if `stop` was called before it was complete."""
        starting = run_awaited("broker start", self.start())
        stopping = run_awaited("wait for the end", self._stopping.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        await self.core.controller.close()
        return False

    async def serve(self) -> None:
        """Serve until `stop` is called; then shut down cleanly."""
        await self._stopping.wait()
        # Clients are served until the end, so that they learn the new leaders.
        await self.core.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        if self._check_timer is not None:
            self._check_timer.cancel()
        for connection in list(self._connections):
            connection.close()

    def stop(self) -> None:
        self._stopping.set()

    # Accepting clients

    def _start_accepting(self) -> None:
        if self._listener is not None and not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - for the type checker
        for _ in range(_MAX_ACCEPTS):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely the limit on open files. Pause: the listener stays readable.
                _logger.warning("cannot accept a client connection: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(_ACCEPT_PAUSE_S, self._start_accepting)
                return
            objection = self._connection_limits.rejection_reason(address[0], self.core.layers)
            if objection is not None:
                _logger.warning("%s: refused, %s", address, objection)
                client.close()
                continue
            connection = ClientConnection(self, client, address)
            self._connections.add(connection)
            self._connection_limits.add(connection)

    def _check_connections(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._connection_limits.enforce(self._connections, self.core.layers, now_s)
        self.core.unserved.report_silent_clients(now_s)

    # For connections

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def on_connection_closed(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._connection_limits.remove(connection)

    def answer(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]:
        """Answer a request; an unknown API or version closes the connection."""
        if tracer.current is not None and merge_request_clock(request):
            return stamp_answer(self._dispatch(request, client_host))
        return self._dispatch(request, client_host)

    def _dispatch(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]:
        header = decode_request_header(request)
        api = APIS.get(header.api_key)
        self.core.traffic.count_request(header.api_key)
        if self._request_log is not None:
            is_served = api is not None and api.least <= header.api_version <= api.most
            self._request_log.note(request, header, is_served=is_served)
        if api is None:
            self.core.unserved.report_request(header, "no version is")
            raise CloseConnection(f"{header.api_key.name} is not served")
        if not api.least <= header.api_version <= api.most:
            if header.api_key == ApiKey.API_VERSIONS:
                return refuse_version(header.correlation_id)
            self.core.unserved.report_request(header, f"versions {api.least} to {api.most} are")
            raise CloseConnection(
                f"version {header.api_version} of {header.api_key.name} is not served"
            )
        if header.api_key in GROUP_REQUESTS:
            self.core.unserved.on_group_request(header, client_host)
        full: ApiRequest[Any, Any] = ApiRequest(request, header, client_host)
        if self.request_faults and (fault := self.request_faults.take(header)) is not None:
            return inject_fault(fault, api, self.core, full)
        return api.handle(self.core, full)


async def run_broker(
    spec: BrokerSpec,
    *,
    on_ready: Callable[[int], None],
    lifeline: int | None = None,
    faults: socket.socket | None = None,
    metrics: EndpointSpec | None = None,
    is_single: bool = False,
) -> None:
    """Run a broker in this process until it ends; calls `on_ready` with the port.

    With `metrics` it has an endpoint of its own, and a single broker writes its own events;
    brokers of a supervisor need neither.
    """
    raise_file_limit()
    use_batch_scheduling()
    tracer.start_tracing(spec.path.parent, f"b{spec.broker_id}")
    loop = asyncio.get_running_loop()
    report_unhandled_errors(loop)
    broker = BrokerServer(spec)
    channel = None
    if faults is not None:
        channel = NodeChannel(
            faults,
            broker.request_faults,
            lambda: _offline_reasons(broker.core.replicas),
            lambda what: _collect(broker.core, collector, what),
        )
    watch = LoopWatch() if channel is None else channel
    gauges = BrokerGauges(lambda: broker.connection_count, lambda: watch.longest_hold_ms)
    collector = BrokerCollector(broker.core, gauges)
    loop.add_signal_handler(signal.SIGTERM, broker.stop)
    if lifeline is not None:
        # Written data is in the page cache, so a broker without a supervisor can exit at once.
        loop.add_reader(lifeline, os._exit, 1)
    if not await broker.start_unless_stopped():
        return
    port = None
    if metrics is not None:
        port = single_broker_port(metrics, spec, broker.core, collector)
        number = await port.start()
        _logger.info("metrics: http://%s:%d/metrics", metrics.host, number)
    on_ready(broker.port)
    view = view_broker(spec, broker.core, broker.port)
    async with write_node_events(view) if is_single else nullcontext():
        await broker.serve()
    if port is not None:
        await port.close()


def _collect(core: BrokerCore, collector: BrokerCollector, what: str) -> Iterator[Chunk]:
    if what == "totals":
        return collect_totals(core)
    return collect_state(core.state) if what == "cluster" else collector.collect()


def _offline_reasons(replicas: Replicas) -> dict[str, str]:
    """The offline replicas of a broker, and those of partitions that wait for somebody to act."""
    waiting = {
        str(key): str(why_offline(partition.record))
        for key, partition in replicas.partitions.items()
        if needs_unclean_election(partition.record)
    }
    return waiting | replicas.offline_reasons()


def use_batch_scheduling() -> None:
    """Use SCHED_BATCH (Linux), so that arriving bytes do not preempt the client that sends them.

    Then more bytes arrive per wake-up, which costs less: with a Java producer on the same two
    cores it saves a sixth of the broker's CPU time. The broker's share of the cores is unchanged.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some sandboxes forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def raise_file_limit() -> None:
    """Raise the limit on open files: a broker opens one per segment and one per client."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        # macOS has a hard limit that it does not accept as a soft one.
        _logger.info("cannot raise the limit on open files; it stays unchanged")
