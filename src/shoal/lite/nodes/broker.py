"""One broker: a process that serves clients.

It listens, answers requests by the API files, and ends when it is told to (SIGTERM), when its
supervisor is gone (the lifeline, a pipe that nobody writes to, is closed), or when it is killed.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shoal.lite.api.api_18_api_versions import refuse_version
from shoal.lite.api.table import APIS
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.frames import heard, stamped
from shoal.lite.base.hooks.request_faults import RequestFaults
from shoal.lite.base.hooks.request_log import RequestLog
from shoal.lite.base.spec import BrokerSpec
from shoal.lite.broker.connection import Connection
from shoal.lite.broker.connection_watch import LOOK_S, ConnectionWatch
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, HangUp, Request
from shoal.lite.broker.unserved import GROUP_REQUESTS
from shoal.lite.testing.faults.answers import gone_wrong
from shoal.lite.testing.faults.channel import NodeEnd
from shoal.model.errors import SystemFailure
from shoal.runtime.tasks import RepeatingCall, call_every, report_unhandled_errors, run_awaited
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import decode_request_header

_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64
_ACCEPT_PAUSE_S = 1.0
_logger = logging.getLogger(__name__)


class Broker:
    """A running broker. `start`, then `serve` until `stop`."""

    def __init__(self, spec: BrokerSpec) -> None:
        self.core = BrokerCore(spec, self.stop)
        self.request_faults = RequestFaults()
        self.port = 0
        self.frame_limit_bytes = self.core.layers.integer("socket.request.max.bytes")
        self._connections: set[Connection] = set()
        self._watch = ConnectionWatch()
        self._request_log = RequestLog.of_environment()
        self._look_timer: RepeatingCall | None = None
        self._listener: socket.socket | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Take the port, and enter the cluster; clients are served from then on."""
        spec = self.core.spec
        listener = self._listener = _bound(spec.host, spec.port)
        self.port = listener.getsockname()[1]
        await self.core.register(self.port)
        # Before it is counted on: leaders must be found where the metadata says they are.
        listener.listen(_BACKLOG)
        self._accept_from_now_on()
        self._look_timer = call_every(
            "connection watch", lambda: LOOK_S, self._look_after_connections
        )
        await self.core.enter()

    async def started(self) -> bool:
        """Do `start`; False if it was told to end before it was through."""
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
        """Until `stop` is called; then end cleanly."""
        await self._stopping.wait()
        # Clients are served to the last, so that they hear where the new leaders are.
        await self.core.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for connection in list(self._connections):
            connection.close()

    def stop(self) -> None:
        self._stopping.set()

    # Accepting clients

    def _accept_from_now_on(self) -> None:
        if self._listener is not None and not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - for the type checker
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No more files, most likely. The listener stays readable: do not spin on it.
                _logger.warning("a client could not be accepted: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(_ACCEPT_PAUSE_S, self._accept_from_now_on)
                return
            objection = self._watch.objection(address[0], self.core.layers)
            if objection is not None:
                _logger.warning("%s: refused, %s", address, objection)
                client.close()
                continue
            connection = Connection(self, client, address)
            self._connections.add(connection)
            self._watch.entered(connection)

    def _look_after_connections(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._watch.look(self._connections, self.core.layers, now_s)
        self.core.unserved.look(now_s)

    # For connections

    def goodbye(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._watch.left(connection)

    def answer(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]:
        """What a frame gets for an answer; an unknown API or version costs the connection."""
        if tracer.current is not None and heard(request):
            return stamped(self._answered(request, client_host))
        return self._answered(request, client_host)

    def _answered(self, request: memoryview, client_host: str) -> Answer | Awaitable[Answer]:
        header = decode_request_header(request)
        api = APIS.get(header.api_key)
        if self._request_log is not None:
            is_served = api is not None and api.least <= header.api_version <= api.most
            self._request_log.note(request, header, is_served=is_served)
        if api is None:
            self.core.unserved.report_request(header, "no version is")
            raise HangUp(f"{header.api_key.name} is not served")
        if not api.least <= header.api_version <= api.most:
            if header.api_key == ApiKey.API_VERSIONS:
                return refuse_version(header.correlation_id)
            self.core.unserved.report_request(header, f"versions {api.least} to {api.most} are")
            raise HangUp(f"version {header.api_version} of {header.api_key.name} is not served")
        if header.api_key in GROUP_REQUESTS:
            self.core.unserved.on_group_request(header, client_host)
        full = Request(request, header, client_host)
        if self.request_faults and (fault := self.request_faults.take(header)) is not None:
            return gone_wrong(fault, api, self.core, full)
        return api.handle(self.core, full)


def _bound(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setblocking(False)
    # A port is held for its broker by the supervisor, which never listens on it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SystemFailure(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="end what listens there, or start the cluster in another folder",
        ) from error
    return listener


async def run_broker(
    spec: BrokerSpec,
    *,
    on_ready: Callable[[int], None],
    lifeline: int | None = None,
    faults: socket.socket | None = None,
) -> None:
    """Be a broker until told to end; `on_ready` is told the port. For a process of its own."""
    allow_many_files()
    take_turns()
    tracer.begin(spec.path.parent, f"b{spec.broker_id}")
    loop = asyncio.get_running_loop()
    report_unhandled_errors(loop)
    broker = Broker(spec)
    if faults is not None:
        NodeEnd(faults, broker.request_faults, broker.core.replicas.offline_reasons)
    loop.add_signal_handler(signal.SIGTERM, broker.stop)
    if lifeline is not None:
        # Data is in the kernel's hands, so a broker without a supervisor can end on the spot.
        loop.add_reader(lifeline, os._exit, 1)
    if await broker.started():
        on_ready(broker.port)
        await broker.serve()


def take_turns() -> None:
    """Where cores are scarce, let a client go on before its first bytes are looked at (Linux).

    Then more of what it sends is there at once, and costs less: with Java's producer on the same
    two cores a sixth of the broker's CPU. The share of the cores stays the same.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some sandboxes allow no such thing
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def allow_many_files() -> None:
    """A broker holds one file for each segment and one socket for each client."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        # macOS has a hard limit that it does not accept as a soft one.
        _logger.info("the limit on open files stays as it is")
