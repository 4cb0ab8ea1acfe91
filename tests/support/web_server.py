"""`shoal serve` as a real process, and plain HTTP requests to it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TIMEOUT_S = 60.0


@dataclass
class Answer:
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """A running server."""

    port: int
    address: str
    pid: int
    output: IO[str]
    cookie: str = field(default="")

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def request(
        self,
        path: str,
        method: str = "GET",
        *,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
        with_cookie: bool = True,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            own = {"Cookie": self.cookie} if with_cookie else {}
            connection.request(method, path, body, {**own, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: bytes, **changes: str) -> Answer:
        headers = {"Origin": f"http://{self.host}", "X-Shoal": "1"} | changes
        return self.request(path, "POST", headers=headers, body=body)

    def log_in(self) -> None:
        """Exchange the token for the cookie; the server prints the next address."""
        path = self.address.partition(self.host)[2]
        answer = self.request(path, with_cookie=False)
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.address = self.read_address()

    def read_address(self) -> str:
        line = self.output.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]+", line)
        assert found, line
        return found[0]

    def open_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)


@contextmanager
def serve_runs(runs_dir: Path, *options: str, state: Path) -> Iterator[Served]:
    """Serve a folder on a free port until the end of the block."""
    command = [sys.executable, "-m", "shoal", "serve", "--port", "0", "--runs-dir", str(runs_dir)]
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            served = Served(0, "", process.pid, process.stdout)
            served.address = served.read_address()
            served.port = int(served.address.split(":")[2].partition("/")[0])
            yield served
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(TIMEOUT_S)
