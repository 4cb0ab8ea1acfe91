"""What workers do, and how often they are restarted.

Rules:
- A `WorkerSpec` is what the experiment requests. An assignment is one attempt at it, with the epoch
  and the address of the driver. Both are sent to a worker as plain JSON.
- The token is sent in the assignment only, never on a command line or in an environment variable.
- A worker's name is part of file names, so it is short and plain.
"""

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from shoal.model.errors import UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

Json = dict[str, Any]
# Of an assignment and the specs in it.
VERSION: Final = 3

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    SCAN = "scan"
    MIRROR = "mirror"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a worker that was lost or failed is restarted, and after which delay.

    The delay doubles with each restart up to the longest one.
    """

    limit: int
    delay_s: float = 0.5
    longest_delay_s: float = 30.0

    def delay_before(self, restart: int) -> float:
        """Before restart number `restart`, counted from 0."""
        return float(min(self.delay_s * 2 ** min(restart, 32), self.longest_delay_s))


NEVER: Final = RestartPolicy(limit=0)

# A dead producer or consumer is not restarted by default: its unknown outcomes must stay
# attributable to its end. A mirror is a service and is restarted.
DEFAULT_RESTARTS: Final[dict[Role, RestartPolicy]] = {
    Role.PRODUCE: NEVER,
    Role.CONSUME: NEVER,
    Role.SCAN: NEVER,
    Role.MIRROR: RestartPolicy(limit=1_000_000),
}


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker, as an experiment requests it. `task` is the JSON of its role."""

    name: str
    role: Role
    task: Json = field(default_factory=dict)
    restart: RestartPolicy | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise UsageError(
                f"{self.name!r:.80} is not a valid name of a worker",
                remedy="use at most 64 letters, digits, dots, underscores and dashes",
            )

    @property
    def restart_policy(self) -> RestartPolicy:
        return self.restart or DEFAULT_RESTARTS[self.role]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt to run a worker: everything that it needs to begin."""

    worker: Annotated[str, "worker"]
    epoch: Annotated[int, "epoch"]
    role: Annotated[Role, "role"]
    task: Annotated[Json, "task"]
    run: Annotated[str, "run"]
    run_dir: Annotated[str, "run_dir"]
    ledgers: Annotated[str, "ledgers"]  # the URL of the segments, if they are not in `run_dir`
    driver_host: Annotated[str, "driver_host"]
    driver_port: Annotated[int, "driver_port"]
    token: Annotated[str, "token"] = field(repr=False)

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **to_plain(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        body = json.loads(text)
        try:
            check_version(body.pop("version", None), (VERSION,))
            return from_plain(cls, body)
        except FormatMismatch as error:
            raise UsageError(
                f"the assignment of a worker {error}",
                remedy="install the same version of shoal where workers run",
            ) from error
