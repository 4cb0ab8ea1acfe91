"""What every test gets: hypothesis profiles, leak checks, and honesty about missing tools.

- A test that leaves a thread, a child process, a socket or an asyncio task behind fails.
- A test marked `quick("a", "b")` runs with these of its parameters in `make test`, and with the
  others in `make test-long`.
- A test marked `system("kcat")` runs where the tool is; elsewhere it is listed as 'not run'
  with the reason, and with APT=yes its absence is an error.
"""

import asyncio
import functools
import gc
import os
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from support.leaks import find_leaks, mark_belongings

pytest_plugins = [
    # First, so that its hook is called after those of the others.
    "support.grouping",
    "support.ordering",
    "support.apache.clusters",
    "support.lite.engines",
    "support.apache.java_gateway",
    "support.apache.kafka_tools",
]

PATIENCE_S = 60.0
# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would
# everything that tests start, and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A cluster that is stopped and started again must find its ports free: each process of a parallel
# run chooses from a range of its own.
if (_worker := os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")).isdecimal():
    _lowest_port = 20_000 + 1_500 * (int(_worker) % 8)
    os.environ.setdefault("SHOAL_PORTS", f"{_lowest_port}-{_lowest_port + 1_499}")
# kafka-python forgets a socket that it is about to connect when it is closed.
_FORGETFUL = re.compile("kafka[-_]python")
SHARED_JVM_FIXTURES = {
    "apache_bootstrap",
    "apache_cluster",
    "java_gateway",
    "java_records",
    "kafka_tools",
    "spark",
}

for name, examples in (("quick", 50), ("thorough", 2000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread, a process or a socket behind."""
    before = mark_belongings()
    yield
    shared_jvm = SHARED_JVM_FIXTURES & set(request.fixturenames)
    deadline = time.monotonic() + PATIENCE_S
    if _FORGETFUL.search(request.node.name):
        _close_forgotten_sockets()
    while leaked := {item for item in find_leaks(before) if not _is_of_gateway(item)}:
        if shared_jvm:
            # A JVM that later tests use too keeps its process, connections and threads.
            leaked = {item for item in leaked if item[0] == "process" and not _is_of_jvm(item[1])}
        if not leaked or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not leaked, f"left behind: {sorted(leaked)}"


def _close_forgotten_sockets() -> None:
    """Those that nobody holds any more; Python closes them, and would complain in a later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _is_of_gateway(item: tuple[str, int, str]) -> bool:
    """Whether the JVM of another test called back, as it does when it looks for garbage."""
    kind, ident, name = item
    if kind == "thread":
        threads = [t for t in threading.enumerate() if t.ident == ident]
        owners = [getattr(getattr(t, "_target", None), "__self__", None) for t in threads]
        return any(type(owner).__module__.startswith("py4j") for owner in owners)
    if kind == "socket":
        return name.rpartition("->")[2] in _ports_of_jvms()
    return False


def _ports_of_jvms() -> set[str]:
    ports: set[str] = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "java" in child.name():
                ports |= {str(c.laddr.port) for c in child.net_connections("inet") if c.laddr}
    return ports


def _is_of_jvm(pid: int) -> bool:
    """Whether a process is a JVM or was started by one, as Spark's Python workers are."""
    try:
        process = psutil.Process(pid)
        return any("java" in p.name() for p in (process, *process.parents()))
    except psutil.NoSuchProcess:
        return True


def _check_for_tasks(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await test(*args, **kwargs)
        deadline = time.monotonic() + PATIENCE_S
        while leaked := asyncio.all_tasks() - before:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        assert not leaked, f"tasks left behind: {leaked}"

    return wrapper


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    made = yield
    if isinstance(made, list):
        _mark_long_parameters([item for item in made if isinstance(item, pytest.Function)])
    return made


def _mark_long_parameters(functions: list[pytest.Function]) -> None:
    quick = {id_ for item in functions for mark in item.iter_markers("quick") for id_ in mark.args}
    if not quick:
        return
    ids = {item.callspec.id for item in functions}
    unknown = quick - ids
    assert not unknown, f"{functions[0].nodeid} has no such parameters: {sorted(unknown)}"
    for item in functions:
        if item.callspec.id not in quick:
            item.add_marker(pytest.mark.long)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and asyncio.iscoroutinefunction(item.obj):
        item.obj = _check_for_tasks(item.obj)


NOT_RUN = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    not_run: dict[str, str] = {}
    running: list[pytest.Item] = []
    for item in items:
        tools = [mark.args[0] for mark in item.iter_markers("system")]
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing and os.environ.get("SHOAL_APT") != "yes":
            not_run[item.nodeid] = f"{', '.join(missing)} is not installed"
            continue
        running.append(item)
    config.stash[NOT_RUN] = not_run
    items[:] = running


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist hands its list to the one that speaks to the user."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = session.config.stash.get(NOT_RUN, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get("not_run", {})
    node.config.stash.setdefault(NOT_RUN, {}).update(told)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    not_run = config.stash.get(NOT_RUN, {})
    if not_run:
        terminalreporter.section("not run (make test APT=yes installs what they need)")
        for nodeid, reason in sorted(not_run.items()):
            terminalreporter.line(f"not run: {nodeid}: {reason}")
