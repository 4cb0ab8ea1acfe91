"""What the proxy costs: bytes through it beside bytes without it, by CPU seconds per GB.

    python -m benchmarks.proxy [MEGABYTES]

A sender and a receiver in processes of their own; the proxy alone is measured, with and without
the translator that follows Kafka's frames.
"""

import asyncio
import multiprocessing
import socket
import statistics
import sys
import time

from shoal.faults.addresses import AddressRewriter
from shoal.net.proxy import Proxy, ProxyRoute

CHUNK = 256 * 1024
PINGS = 2000


def discard_received(listener: socket.socket) -> None:
    """Receive everything; echo single bytes."""
    while True:
        peer, _ = listener.accept()
        while data := peer.recv(1 << 20):
            if len(data) == 12:
                peer.sendall(data)
        peer.close()


def send(port: int, megabytes: int) -> None:
    frame = (CHUNK - 4).to_bytes(4, "big") + b"\0\1\0\4\0\0\0\1" + bytes(CHUNK - 12)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(megabytes * 1_000_000 // CHUNK):
            peer.sendall(frame)


def ping(port: int, results: "multiprocessing.Queue[float]") -> None:
    frame = (8).to_bytes(4, "big") + b"\0\1\0\4\0\0\0\1"
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(PINGS):
            began = time.perf_counter()
            peer.sendall(frame)
            got = 0
            while got < len(frame):
                got += len(peer.recv(64))
            times.append(time.perf_counter() - began)
    results.put(statistics.median(times) * 1e6)


async def cost(port: int, megabytes: int) -> tuple[float, float]:
    """CPU seconds of this process per GB, and the median round trip in µs."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[float] = context.Queue()
    pinger = context.Process(target=ping, args=(port, results))
    pinger.start()
    await asyncio.to_thread(pinger.join)
    sender = context.Process(target=send, args=(port, megabytes))
    sender.start()
    began = time.process_time()
    await asyncio.to_thread(sender.join)
    return (time.process_time() - began) / megabytes * 1000, results.get()


async def main(megabytes: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(
        target=discard_received, args=(listener,), daemon=True
    )
    server.start()
    address = listener.getsockname()
    proxy = Proxy()
    caller, target = frozenset({"caller"}), frozenset({"target"})
    plain = ProxyRoute(address, target, caller=caller)
    following = ProxyRoute(
        address,
        target,
        caller=caller,
        rewriter=lambda: AddressRewriter(lambda _node, host, port: (host, port)),
    )
    ports = {
        "no proxy": address[1],
        "proxy": proxy.open(plain),
        "proxy that follows frames": proxy.open(following),
    }
    for name, port in ports.items():
        cpu_s, round_trip_us = await cost(port, megabytes)
        print(f"{name:<28} {cpu_s:6.2f} CPU s/GB   round trip {round_trip_us:6.0f} µs")
    await proxy.close()
    server.terminate()
    server.join()
    listener.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
