"""An S3 of this machine (moto), as a process of its own, and what it was asked for."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from shoal.net.ports import free_ports

BUCKET = "runs"
PATIENCE_S = 120  # of a busy machine
_REQUEST = re.compile(r'"(GET|HEAD|PUT|POST|DELETE) /([^ ?"]*)')


@dataclass
class S3Server:
    """Where it is, and the log of its requests."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs; not the credentials of the user who runs the tests."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def files(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key="key",
            secret_key="secret",  # noqa: S106 - any will do
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            connect_timeout=PATIENCE_S,
            request_timeout=PATIENCE_S,
        )

    def list_requests(self) -> list[tuple[str, str]]:
        """All requests so far: method, and bucket with key."""
        return _REQUEST.findall(self.log.read_text())

    def upload(self, run: Path, name: str) -> str:
        """Copy a folder into the bucket; return its URL."""
        fs.copy_files(str(run), f"{BUCKET}/{name}", destination_filesystem=self.files)
        return f"s3a://{BUCKET}/{name}"

    def download(self, name: str, folder: Path) -> Path:
        folder.mkdir(parents=True)
        fs.copy_files(f"{BUCKET}/{name}", str(folder), source_filesystem=self.files)
        return folder

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{BUCKET}/{name}") as file:
            return bytes(file.read())

    def list_names(self, name: str) -> set[str]:
        """The files below a folder of the bucket, relative to it."""
        start = f"{BUCKET}/{name}"
        selector = fs.FileSelector(start, recursive=True, allow_not_found=True)
        found = self.files.get_file_info(selector)
        return {each.path[len(start) + 1 :] for each in found if each.type == fs.FileType.File}


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server with one empty bucket."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = folder / "s3.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(command, stdout=sink, stderr=sink) as process,
    ):
        try:
            _await_port(port, process)
            server = S3Server(port, process, log)
            server.files.create_dir(BUCKET)
            yield server
        finally:
            process.kill()


def _await_port(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return
        assert server.poll() is None, "moto has ended"
        assert time.monotonic() < deadline, "moto does not answer"
        time.sleep(0.1)
