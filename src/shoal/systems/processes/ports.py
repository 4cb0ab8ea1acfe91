"""Ports for clusters on this machine.

Ports are taken at random from below the range that systems give to outgoing connections,
so that no client's connection can sit on a broker's port while the broker is restarted.
"""

import random
import socket
import sys
from contextlib import ExitStack
from typing import Final

from shoal.model.errors import SystemFailure

HOST: Final = "127.0.0.1"
WHO_LISTENS: Final = (
    "ss --listening --tcp --processes" if sys.platform == "linux" else "lsof -nP -iTCP -sTCP:LISTEN"
)
_LOWEST: Final = 20_000
_HIGHEST: Final = 32_767
_TRIES_PER_PORT: Final = 50


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on."""
    chooser = random.SystemRandom()
    chosen: list[int] = []
    with ExitStack() as held:
        for _ in range(count * _TRIES_PER_PORT):
            if len(chosen) == count:
                break
            port = chooser.randint(_LOWEST, _HIGHEST)
            listener = held.enter_context(socket.socket())
            if _bound(listener, port):
                chosen.append(port)
    if len(chosen) < count:
        raise SystemFailure(
            f"no {count} free ports between {_LOWEST} and {_HIGHEST} on {HOST}",
            remedy=f"end programs that listen there; they are shown by: {WHO_LISTENS}",
        )
    return chosen


def is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as listener:
        return _bound(listener, port)


def _bound(listener: socket.socket, port: int) -> bool:
    # As servers do, so that connections that lately ended do not count.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError:
        return False
    return True
