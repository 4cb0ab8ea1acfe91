"""One controller: a process that takes part in the metadata quorum.

It ends on SIGTERM, after it has resigned if it is the active one; when its supervisor is gone; or
when it has failed permanently, with a message that says why.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import nullcontext

from shoal.lite.base.folder_lock import lock_folder
from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.request_faults import RequestFaults
from shoal.lite.base.spec import ControllerSpec
from shoal.lite.metadata.server.host import ControllerHost
from shoal.lite.metadata.server.joining import Founding
from shoal.lite.nodes.node_events import view_controller, write_node_events
from shoal.lite.raft.storage.small_files import MEMBER_NAME
from shoal.lite.testing.faults.channel import NodeChannel
from shoal.model.errors import SystemFailure
from shoal.runtime.tasks import report_unhandled_errors, run_awaited


async def run_controller(
    spec: ControllerSpec,
    *,
    on_ready: Callable[[int], None],
    lifeline: int | None = None,
    faults: socket.socket | None = None,
    is_single: bool = False,
) -> None:
    """Run a controller in this process until it ends; calls `on_ready` with its port.

    A single controller, without a supervisor, writes its own events.
    """
    tracer.start_tracing(spec.path.parent, f"c{spec.controller_id}")
    loop = asyncio.get_running_loop()
    report_unhandled_errors(loop)
    end: asyncio.Future[str | None] = loop.create_future()

    def finish(reason: str | None) -> None:
        if not end.done():
            end.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, finish, None)
    if lifeline is not None:
        # Acknowledged records are on the disk, so it can exit at once without a supervisor.
        loop.add_reader(lifeline, os._exit, 1)
    if faults is not None:
        NodeChannel(faults, RequestFaults())
    lock_folder(spec.path)
    port = spec.port
    if not (spec.path / MEMBER_NAME).exists():
        founding = Founding(
            spec.path,
            spec.controller_id,
            spec.cluster_id,
            spec.controllers,
            may_replace=spec.may_replace,
        )
        task = run_awaited("founding of the quorum", founding.run(spec.host, port))
        await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            return
        port = task.result()
    host = ControllerHost(
        spec.path,
        spec.cluster_id,
        spec.properties,
        controllers=[peer for peer in spec.controllers if peer.node_id != spec.controller_id],
        on_failed=finish,
    )
    port = host.bind(spec.host, port)
    await host.start(spec.advertised_host or spec.host, port)
    on_ready(port)
    view = view_controller(spec, host, port)
    async with write_node_events(view) if is_single else nullcontext():
        reason = await end
    if reason is None:
        await host.resign()
    await host.close()
    if reason is not None:
        raise SystemFailure(reason)
