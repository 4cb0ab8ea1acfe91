"""What a test could leave behind: threads, processes and sockets, found at little cost.

Every test is looked at twice, so a look must be cheap: psutil reads all connections and all
processes of the machine, of which a busy one has thousands. A look only notes numbers; what is
new at the end of a test is then looked at closely.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

Mark = tuple[str, int]  # kind, number
Leak = tuple[str, int, str]  # kind, number, name


def mark_belongings() -> set[Mark]:
    """Everything of this process that a test could leak."""
    marks = {("thread", thread.native_id or 0) for thread in threading.enumerate()}
    marks |= {("process", pid) for pid in _iterate_descendants(os.getpid())}
    return marks | {("socket", number) for number in _list_sockets().values()}


def find_leaks(before: set[Mark]) -> set[Leak]:
    """What is there now and was not there before."""
    new = mark_belongings() - before
    leaks = {
        ("thread", thread.ident or 0, thread.name)
        for thread in threading.enumerate()
        if ("thread", thread.native_id or 0) in new
    }
    for pid in (number for kind, number in new if kind == "process"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and not _is_of_browser(process, before):
                leaks.add(("process", pid, process.name()))
    return leaks | _find_sockets({number for kind, number in new if kind == "socket"})


def _is_of_browser(process: psutil.Process, before: set[Mark]) -> bool:
    """Whether a browser that was there before has started it: a service, minutes after its start.

    It ends with the browser, which belongs to a fixture of the module.
    """
    parents = {("process", parent.pid) for parent in process.parents()[:2]}
    return process.name().startswith("chrom") and bool(parents & before)


def _find_sockets(numbers: set[int]) -> set[Leak]:
    """Those of them that speak IP; an event loop has some of another kind."""
    if not numbers:
        return set()
    descriptors = {fd for fd, number in _list_sockets().items() if number in numbers}
    return {
        ("socket", one.fd, f"{one.laddr.port}->{one.raddr.port if one.raddr else ''}")
        for one in psutil.Process().net_connections("inet")
        if one.fd in descriptors
    }


def _list_sockets() -> dict[int, int]:
    """A number for each socket, by descriptor."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        connections = psutil.Process().net_connections("inet")
        return {one.fd: hash((one.fd, one.laddr, one.raddr)) for one in connections}
    found = {}
    for name in os.listdir(folder):  # noqa: PTH208 - names are enough, and cheaper
        with suppress(OSError):  # closed by another thread
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - not a path
            if target.startswith("socket:["):
                found[int(name)] = int(target[len("socket:[") : -1])
    return found


def _iterate_descendants(pid: int) -> Iterator[int]:
    lists = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not lists and pid == os.getpid():  # a system that keeps no such lists
        yield from (child.pid for child in psutil.Process().children(recursive=True))
    for path in lists:
        with suppress(OSError):  # the thread, or the process, has ended
            for child in map(int, path.read_bytes().split()):
                yield child
                yield from _iterate_descendants(child)
