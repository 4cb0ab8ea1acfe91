"""Serves the page on 127.0.0.1: until it is interrupted, or beside the work of a command."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from shoal.model.errors import UsageError
from shoal.runtime.tasks import log_only, start_thread
from shoal.web.access import LARGEST_HEADERS_BYTES, Access
from shoal.web.app import DEMO_PRESS, Demo, build_app
from shoal.web.connections import LimitedProtocol

ADDRESS: Final = "127.0.0.1"
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How to serve; port 0 takes a free one."""

    runs_dir: Path
    port: int = 8080
    allow_actions: bool = False
    experiments: Path | None = None


def serve(settings: ServeSettings, on_address: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `on_address` gets each address that opens the page once."""
    with bind_port(settings.port) as listener:
        port = listener.getsockname()[1]
        access = Access(port, allow_actions=settings.allow_actions, on_exchange=on_address)
        app = build_app(settings.runs_dir, access, experiments=settings.experiments)
        # Ctrl-C is how it ends; uvicorn raises it again when it has closed everything.
        with suppress(KeyboardInterrupt):
            on_address(access.address)
            asyncio.run(_make_server(app).serve([listener]))


@contextmanager
def serve_demo(runs_dir: Path, demo: Demo, on_address: Callable[[str], None]) -> Iterator[Access]:
    """Serve the page of `shoal demo` in a thread, on any free port, until the end of the block."""
    with bind_port(0) as listener:
        port = listener.getsockname()[1]
        access = Access(port, allowed_paths=(DEMO_PRESS,), on_exchange=on_address)
        server = _make_server(build_app(runs_dir, access, demo=demo))
        thread = start_thread(
            "page of the demo",
            lambda: asyncio.run(server.serve([listener])),
            on_failure=log_only,
        )
        on_address(access.address)
        try:
            yield access
        finally:
            server.should_exit = True
            thread.join()


def _make_server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=LARGEST_HEADERS_BYTES,
    )
    return uvicorn.Server(config)


def bind_port(port: int) -> socket.socket:
    """A listening socket of this machine only."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot bind port {port} on {ADDRESS}: {error.strerror}",
            remedy="choose another with --port, or --port 0 for any free one",
        ) from error
    listener.listen(_BACKLOG)
    return listener
