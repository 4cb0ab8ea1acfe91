"""Ports for clusters on this machine.

Ports are chosen at random below the range that the system uses for outgoing connections, so that
no client's connection can occupy a broker's port while the broker is restarted.
"""

import random
import socket
import sys
from contextlib import ExitStack
from typing import Final

from shoal.model.errors import SystemFailure

HOST: Final = "127.0.0.1"
LIST_LISTENERS_COMMAND: Final = (
    "ss --listening --tcp --processes" if sys.platform == "linux" else "lsof -nP -iTCP -sTCP:LISTEN"
)
_LOWEST: Final = 20_000
_HIGHEST: Final = 32_767
_TRIES_PER_PORT: Final = 50


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on."""
    chooser = random.SystemRandom()
    chosen: list[int] = []
    with ExitStack() as sockets:
        for _ in range(count * _TRIES_PER_PORT):
            if len(chosen) == count:
                break
            port = chooser.randint(_LOWEST, _HIGHEST)
            listener = sockets.enter_context(socket.socket())
            if _try_bind(listener, port):
                chosen.append(port)
    if len(chosen) < count:
        raise SystemFailure(
            f"cannot find {count} free ports between {_LOWEST} and {_HIGHEST} on {HOST}",
            remedy=f"stop programs that listen there; this lists them: {LIST_LISTENERS_COMMAND}",
        )
    return chosen


def is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as listener:
        return _try_bind(listener, port)


def _try_bind(listener: socket.socket, port: int) -> bool:
    # Servers set this too: without it, connections in TIME_WAIT would make the port look taken.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError:
        return False
    return True
