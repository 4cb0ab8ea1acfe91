"""Free ports, and asking brokers that answer, lie, hang or are not there."""

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.model.errors import SystemFailure, UsageError
from shoal.net import ports
from shoal.systems.probe import ClusterView, ask_metadata


def test_free_ports_differ_and_are_free() -> None:
    chosen = ports.free_ports(20)
    assert len(set(chosen)) == 20
    assert all(ports.is_free(port) for port in chosen)
    assert max(chosen) < 32768  # below what outgoing connections get


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_no_free_port_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setenv("SHOAL_PORTS", f"{taken}-{taken}")
        with pytest.raises(SystemFailure, match="cannot find a free port between") as failure:
            ports.free_ports(1)
    assert failure.value.remedy is not None


def test_a_reserved_port_is_chosen_by_nobody_else_and_its_server_can_listen_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lowest = ports.free_ports(1)[0]
    monkeypatch.setenv("SHOAL_PORTS", f"{lowest}-{lowest}")
    with ports.reserve_port("127.0.0.1") as reservation:
        assert reservation.getsockname()[1] == lowest
        with pytest.raises(SystemFailure, match="cannot find a free port"):
            ports.reserve_port("127.0.0.1")
        if sys.platform == "linux":
            with socket.create_server(("127.0.0.1", lowest)):
                pass


@pytest.mark.parametrize("text", ["", "9092", "9092-", "-9092", "0-9", "9-8", "1-65536", "a-b"])
def test_a_bad_range_of_ports_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PORTS", text)
    with pytest.raises(UsageError, match="is not a range of ports"):
        ports.free_ports(1)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that takes one connection, reads a request and sends `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def metadata(*brokers: tuple[int, bytes | None], controller: int) -> bytes:
    body = struct.pack(">ii", 1, len(brokers))
    for broker_id, rack in brokers:
        body += struct.pack(">ih4si", broker_id, 4, b"host", 9092)
        body += struct.pack(">h", -1 if rack is None else len(rack)) + (rack or b"")
    body += struct.pack(">ii", controller, 0)
    return struct.pack(">i", len(body)) + body


def test_brokers_and_controller_are_read() -> None:
    with answering(metadata((1, None), (7, b"rack-a"), controller=7)) as port:
        assert ask_metadata("127.0.0.1", port) == ClusterView(frozenset({1, 7}), 7)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\0",
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">iii", 8, 1, 2_000_000_000),
        metadata((1, None), controller=1)[:-9],
        struct.pack(">iiihi", 14, 1, 1, 1, -9),
    ],
)
def test_nonsense_counts_as_no_answer(answer: bytes) -> None:
    with answering(answer) as port:
        assert ask_metadata("127.0.0.1", port) is None


def test_silence_and_absence_count_as_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ask_metadata("127.0.0.1", port, timeout_s=0.1) is None
    assert ask_metadata("127.0.0.1", port, timeout_s=0.1) is None
