"""The messages between driver and workers: one JSON object per line.

Rules:
- A message is a frozen dataclass; its `type` on the wire is its name in `WORKER_MESSAGES` or
  `DRIVER_MESSAGES`, and its fields have the names beside their types. Unknown types, missing,
  extra or mistyped fields are refused.
- The length of a line is checked before it is parsed; no length announced by a peer is trusted.
- Times are whole microseconds since the Unix epoch, by the clock of the side in the field name.

| from worker | meaning                                            | answer             |
|-------------|----------------------------------------------------|--------------------|
| `hello`     | instance I of (worker, epoch) with this token      | `lease`, `refused` |
| `commit`    | write this line to the commit log                  | `ack` of its number |
| `progress`  | the worker's progress; only the newest counts      | none               |
| `probed`    | answer to a probe, with the worker's clock         | none               |

| from driver | meaning                                            |
|-------------|----------------------------------------------------|
| `lease`     | the worker may run, from `start_at_us` on if given  |
| `refused`   | the worker has no lease: end, send nothing          |
| `start_at`  | begin at this time                                  |
| `ack`       | the commit of this number is durable                |
| `drained`   | these lanes are drained                             |
| `tell`      | values for the worker's role; only the newest counts |
| `finish`    | send no new messages, drain, seal, commit `ended`   |
| `stop`      | send nothing more, seal, commit `ended`             |
| `probe`     | heartbeat and clock probe                           |
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from shoal.model.serialised import FormatMismatch, from_plain, to_plain
from shoal.net.control_port import ControlError, Json, decode_object


@dataclass(frozen=True, slots=True)
class Hello:
    worker: Annotated[str, "worker"]
    epoch: Annotated[int, "epoch"]
    token: Annotated[str, "token"]
    # Random for every process or task: it distinguishes two that claim the same lease.
    instance: Annotated[str, "instance"]
    pid: Annotated[int, "pid"]
    host: Annotated[str, "host"]
    # When its process started, as `ProcessIdentity` has it: a pid alone may be another's.
    start_mark: Annotated[str, "start_mark"] = ""


@dataclass(frozen=True, slots=True)
class Commit:
    number: Annotated[int, "number"]
    line: Annotated[Json, "line"]


@dataclass(frozen=True, slots=True)
class ProgressReport:
    values: Annotated[Json, "values"]


@dataclass(frozen=True, slots=True)
class ProbeReply:
    driver_us: Annotated[int, "driver_us"]
    worker_us: Annotated[int, "worker_us"]


@dataclass(frozen=True, slots=True)
class Lease:
    worker: Annotated[str, "worker"]
    epoch: Annotated[int, "epoch"]
    start_at_us: Annotated[int | None, "start_at_us"]


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    reason: Annotated[str, "reason"]


@dataclass(frozen=True, slots=True)
class StartAt:
    at_us: Annotated[int, "at_us"]


@dataclass(frozen=True, slots=True)
class Ack:
    number: Annotated[int, "number"]


@dataclass(frozen=True, slots=True)
class LanesDrained:
    """Lanes that every group has drained, each as [producer, incarnation, topic, lane]."""

    lanes: Annotated[list[Any], "lanes"]


@dataclass(frozen=True, slots=True)
class RoleUpdate:
    values: Annotated[Json, "values"]


@dataclass(frozen=True, slots=True)
class Finish:
    reason: Annotated[str, "reason"]


@dataclass(frozen=True, slots=True)
class Stop:
    reason: Annotated[str, "reason"]


@dataclass(frozen=True, slots=True)
class Probe:
    driver_us: Annotated[int, "driver_us"]


WorkerMessage = Hello | Commit | ProgressReport | ProbeReply
DriverMessage = (
    Lease | LeaseRefused | StartAt | Ack | LanesDrained | RoleUpdate | Finish | Stop | Probe
)
Message = WorkerMessage | DriverMessage

WORKER_MESSAGES: Final[dict[str, type[WorkerMessage]]] = {
    "hello": Hello,
    "commit": Commit,
    "progress": ProgressReport,
    "probed": ProbeReply,
}
DRIVER_MESSAGES: Final[dict[str, type[DriverMessage]]] = {
    "lease": Lease,
    "refused": LeaseRefused,
    "start_at": StartAt,
    "ack": Ack,
    "drained": LanesDrained,
    "tell": RoleUpdate,
    "finish": Finish,
    "stop": Stop,
    "probe": Probe,
}

_Kind = TypeVar("_Kind", WorkerMessage, DriverMessage)

_NAMES: Final[dict[type[Message], str]] = {
    **{kind: name for name, kind in WORKER_MESSAGES.items()},
    **{kind: name for name, kind in DRIVER_MESSAGES.items()},
}


def encode_message(message: Message) -> bytes:
    """One line, newline included."""
    body = {"type": _NAMES[type(message)], **to_plain(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode_worker_message(line: bytes) -> WorkerMessage:
    return _decode(line, WORKER_MESSAGES)


def decode_driver_message(line: bytes) -> DriverMessage:
    return _decode(line, DRIVER_MESSAGES)


def _decode(line: bytes, known: Mapping[str, type[_Kind]]) -> _Kind:
    body = decode_object(line)
    name = body.pop("type", None)
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ControlError(f"a control line has the unknown type {name!r:.40}")
    try:
        return from_plain(kind, body)
    except FormatMismatch as error:
        raise ControlError(f"a control line {name!r} {error}") from error
