"""Ports for clusters on this machine.

Ports are chosen at random below the range that the system uses for outgoing connections, so that
no client's connection can occupy a broker's port while the broker is restarted. A user who needs
other ports names them in the environment: SHOAL_PORTS=20000-24999.
"""

import errno
import os
import random
import socket
import sys
from contextlib import ExitStack
from typing import Final

from shoal.model.errors import SystemFailure, UsageError

HOST: Final = "127.0.0.1"
LIST_LISTENERS_COMMAND: Final = (
    "ss --listening --tcp --processes" if sys.platform == "linux" else "lsof -nP -iTCP -sTCP:LISTEN"
)
RANGE_VARIABLE: Final = "SHOAL_PORTS"
_DEFAULT_RANGE: Final = "20000-32767"
_MAX_PORT: Final = 65_535
_TRIES_PER_PORT: Final = 50


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody uses."""
    with ExitStack() as sockets:
        reservations = [sockets.enter_context(reserve_port(HOST)) for _ in range(count)]
        return [reservation.getsockname()[1] for reservation in reservations]


def reserve_port(host: str) -> socket.socket:
    """A socket that holds a port nobody uses, and does not listen.

    Connections are refused, no other program gets the port, and on Linux the server that it is
    for can bind it as well.
    """
    lowest, highest = _read_port_range()
    chooser = random.SystemRandom()
    for _ in range(_TRIES_PER_PORT):
        reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            reservation.bind((host, chooser.randint(lowest, highest)))
        except OSError as error:
            reservation.close()
            if error.errno != errno.EADDRINUSE:
                raise SystemFailure(
                    f"cannot listen on {host}: {error.strerror}",
                    remedy="choose an address of this machine",
                ) from error
            continue
        # Only now: two sockets that set it before could bind the same port.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reservation
    raise SystemFailure(
        f"cannot find a free port between {lowest} and {highest} on {host}",
        remedy=f"stop programs that listen there ({LIST_LISTENERS_COMMAND} lists them), or name "
        f"other ports in {RANGE_VARIABLE}",
    )


def bind_port(host: str, port: int, *, remedy: str) -> socket.socket:
    """A socket that holds this port, or any free one for 0, and does not listen yet."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A supervisor reserves the ports of its nodes: they are bound there too, without listening.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise SystemFailure(
            f"cannot listen on {host}, port {port}: {error.strerror}", remedy=remedy
        ) from error
    return bound


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


def _read_port_range() -> tuple[int, int]:
    text = os.environ.get(RANGE_VARIABLE, _DEFAULT_RANGE)
    low, _, high = text.partition("-")
    if low.isascii() and low.isdecimal() and high.isascii() and high.isdecimal():
        lowest, highest = int(low), int(high)
        if 0 < lowest <= highest <= _MAX_PORT:
            return lowest, highest
    raise UsageError(
        f"{RANGE_VARIABLE}={text} is not a range of ports",
        remedy=f"name the lowest and the highest, like {RANGE_VARIABLE}={_DEFAULT_RANGE}",
    )
