"""What a test leaves behind is found: each kind is planted here, and cleared away again."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from support.leaks import find_leaks, mark_belongings


def plant_thread() -> tuple[int, Callable[[], None]]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()

    def clear() -> None:
        end.set()
        thread.join()

    return thread.ident or 0, clear


def plant_socket() -> tuple[int, Callable[[], None]]:
    server = socket.create_server(("127.0.0.1", 0))
    return server.fileno(), server.close


def plant_grandchild() -> tuple[int, Callable[[], None]]:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "print(child.pid, flush=True); child.wait()"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout

    def clear() -> None:
        process.communicate("\n")

    return int(process.stdout.readline()), clear


@pytest.mark.parametrize(
    ("kind", "plant"),
    [("thread", plant_thread), ("socket", plant_socket), ("process", plant_grandchild)],
)
def test_what_is_left_behind_is_found(
    kind: str, plant: Callable[[], tuple[int, Callable[[], None]]]
) -> None:
    before = mark_belongings()
    number, clear = plant()
    try:
        assert (kind, number) in {leak[:2] for leak in find_leaks(before)}
        assert find_leaks(mark_belongings()) == set()
    finally:
        clear()
    assert find_leaks(before) == set()


def test_sockets_that_do_not_speak_ip_are_nobodys_leak() -> None:
    before = mark_belongings()
    one, other = socket.socketpair()
    with one, other:
        assert find_leaks(before) == set()
