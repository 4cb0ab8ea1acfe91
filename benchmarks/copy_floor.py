"""The kernel's copy floor: what a relay costs that does nothing but read and send.

One thread relays between two TCP connections of the loopback interface, as a mirror does between
two clusters on one machine, with reads and sends of 1 MiB. Only its own CPU counts. A pair of
AF_UNIX sockets would be cheaper than any TCP connection, and so no floor of a mirror.
"""

import resource
import socket
import threading
from typing import Final

from benchmarks.harness import GB

FLOOR_BYTES: Final = 1_000_000_000
READ_BYTES: Final = 1 << 20


def copy_floor() -> float:
    """CPU seconds per GB of a relay between two connections; of the relay's thread alone."""
    feed, entry = _connect()
    way_out, drain = _connect()
    chunk = bytes(READ_BYTES)

    def send() -> None:
        for _ in range(FLOOR_BYTES // READ_BYTES):
            feed.sendall(chunk)
        feed.close()

    def receive() -> None:
        buffer = bytearray(READ_BYTES)
        while drain.recv_into(buffer):
            pass

    threads = [threading.Thread(target=each) for each in (send, receive)]
    for each in threads:
        each.start()
    buffer = memoryview(bytearray(READ_BYTES))
    before, copied = resource.getrusage(resource.RUSAGE_THREAD), 0
    while size := entry.recv_into(buffer):
        way_out.sendall(buffer[:size])
        copied += size
    after = resource.getrusage(resource.RUSAGE_THREAD)
    way_out.close()
    for each in threads:
        each.join()
    for end in (entry, drain):
        end.close()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / (copied / GB)


def _connect() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, which sends what it gets at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other
