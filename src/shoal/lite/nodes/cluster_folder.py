"""The folder of a cluster: its files, and its lock.

<folder>/
    cluster.json      format, ids, ports and settings: what makes the folder a cluster
    lock              held by the supervisor and all brokers while any of them is alive
    supervisor.json   the control port of the running supervisor, and its token
    supervisor.log, broker-1.log
    metadata/         the disk of the controller inside the supervisor: the metadata log
    controller-101/   the disk of a controller process, if the cluster has them
    broker-1/         the data of broker 1
"""

import base64
import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from shoal.lite.storage.files import replace_file
from shoal.model.errors import SystemFailure, UnreachableError, UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

FORMAT = 3
# Of `supervisor.json` and the control protocol; version 1 had no version field.
CONTROL_VERSION = 2
_LOCK_RETRY_S = 0.02


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The control port of a cluster's supervisor."""

    pid: Annotated[int, "pid"]
    port: Annotated[int, "port"]
    token: Annotated[str, "token"]


@dataclass(frozen=True, slots=True)
class Description:
    """The content of `cluster.json`."""

    cluster_id: Annotated[str, "cluster_id"]
    ports: Annotated[dict[int, int], "ports"]
    controllers: Annotated[dict[int, int], "controllers"]
    profile: Annotated[str | None, "profile"]
    properties: Annotated[dict[str, str], "properties"]


@dataclass(slots=True)
class ClusterFolder:
    """The folder of a cluster, or of a new one."""

    path: Path
    cluster_id: str = ""
    # By broker: its port, the same since its first start.
    ports: dict[int, int] = field(default_factory=dict)
    # The same for controller processes.
    controllers: dict[int, int] = field(default_factory=dict)
    # Start options, stored so that a restart uses the same.
    profile: str | None = None
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> Path:
        return self.path / "metadata"

    def controller(self, controller_id: int) -> Path:
        return self.path / f"controller-{controller_id}"

    def broker(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}"

    def log_file(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def load(self) -> None:
        """Read `cluster.json`, or create it in an empty folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        description = self.path / "cluster.json"
        if not description.exists():
            self._refuse_foreign_content()
            self.cluster_id = _new_cluster_id()
            self.save()
            return
        try:
            content = json.loads(description.read_bytes())
            format_version = content.pop("format")
            if format_version == FORMAT:
                stored = from_plain(Description, content)
                self.cluster_id = stored.cluster_id
                self.ports, self.controllers = stored.ports, stored.controllers
                self.profile, self.properties = stored.profile, stored.properties
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemFailure(
                f"cannot read {description}: {error}",
                remedy="use the version of shoal that made the folder, or another folder",
            ) from error
        if format_version != FORMAT:
            raise SystemFailure(
                f"{self.path} has format {format_version}, this version of shoal knows {FORMAT}",
                remedy="use the version of shoal that made the folder, or another folder",
            )

    def refuse_lost_metadata(self) -> None:
        """Raise if new metadata would replace lost metadata: brokers delete unknown partitions."""
        if self.ports:
            raise SystemFailure(
                f"the metadata of the cluster in {self.path} is missing; a start without it would "
                "delete the data of the brokers",
                remedy="restore the controllers' folders, or choose another folder",
            )

    def save(self) -> None:
        description = Description(
            self.cluster_id, self.ports, self.controllers, self.profile, self.properties
        )
        content = {"format": FORMAT, **to_plain(description)}
        replace_file(self.path / "cluster.json", json.dumps(content, indent=1).encode())

    def _refuse_foreign_content(self) -> None:
        ours = {"lock", "supervisor.log"}
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in ours)
        if foreign:
            raise UsageError(
                f"{self.path} is not a shoal cluster and not empty (it contains {foreign[0]})",
                remedy="choose an empty folder, or one that does not exist",
            )

    def lock(self, timeout_s: float, *, is_ending: bool = False) -> int:
        """Lock the folder; returns the descriptor that holds the lock, also in child processes.

        Waits for processes that are ending, but not for a running supervisor, unless
        `is_ending` says that it is shutting down.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline and (is_ending or not self._is_supervised()):
                    time.sleep(_LOCK_RETRY_S)
                    continue
                os.close(descriptor)
                raise SystemFailure(
                    f"a cluster is already running in {self.path}",
                    remedy="stop it first, or attach to it",
                ) from None
            return descriptor

    def _is_supervised(self) -> bool:
        try:
            os.kill(self.control().pid, 0)
        except (UnreachableError, ProcessLookupError, PermissionError):
            return False
        except SystemFailure:
            return True  # by another version of shoal
        return True

    # The control address of the supervisor

    @property
    def _control_file(self) -> Path:
        return self.path / "supervisor.json"

    def publish_control(self, address: ControlAddress) -> None:
        """Write `supervisor.json`, readable by the owner only: the token allows killing brokers."""
        content = {"version": CONTROL_VERSION, **to_plain(address)}
        replace_file(self._control_file, json.dumps(content).encode(), durable=False)

    def retract_control(self) -> None:
        self._control_file.unlink(missing_ok=True)

    def control(self) -> ControlAddress:
        try:
            content = json.loads(self._control_file.read_bytes())
            check_version(content.pop("version", 1), (CONTROL_VERSION,))
            return from_plain(ControlAddress, content)
        except FormatMismatch as error:
            raise SystemFailure(
                f"{self._control_file} {error}",
                remedy="stop the cluster with the version of shoal that started it",
            ) from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UnreachableError(
                f"no cluster is running in {self.path}", remedy="start it first"
            ) from error


def _new_cluster_id() -> str:
    """A random cluster id in Apache Kafka's format."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
