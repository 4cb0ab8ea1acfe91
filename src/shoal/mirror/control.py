"""Commands to a running mirror from another terminal: status, pause and resume.

Rules:
- A mirror listens on a port of the loopback interface and writes port and token to a file that
  only its owner can read: `<state folder>/mirrors/<pid>.json`. The process deletes the file when it
  ends; `find_running_mirrors` removes files that killed processes left behind.
- A command addresses one flow, by the mirror's name, or all flows of a process.
- A request has a token, a command and a flow or null; `shoal.net.control_port` has the protocol.
"""

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from shoal.mirror.flow import Flow
from shoal.model.errors import SystemFailure, UnreachableError, UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain
from shoal.net.control_port import ControlError, ControlPort, request_answer
from shoal.runtime.paths import make_folder, state_dir

COMMANDS: Final = ("status", "pause", "resume")
# Of the file and of the protocol on the port.
VERSION: Final = 3
PATIENCE_S: Final = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where one running mirror accepts commands."""

    flows: Annotated[list[str], "flows"]
    pid: Annotated[int, "pid"]
    port: Annotated[int, "port"]
    token: Annotated[str, "token"]


class MirrorControl:
    """Accepts commands for the flows of this process."""

    def __init__(self, names: list[str], flows: Mapping[str, Flow]) -> None:
        """`flows` holds those of `names` that have started."""
        self._names = names
        self._flows = flows
        self._token = secrets.token_urlsafe(24)
        self._file: Path | None = None
        self._port = ControlPort(self._answer, token=self._token, timeout_s=PATIENCE_S)

    async def start(self) -> None:
        port = await self._port.start()
        folder = make_folder(_folder(), variable="XDG_STATE_HOME")
        self._file = folder / f"{os.getpid()}.json"
        address = Address(self._names, os.getpid(), port, self._token)
        body = {"version": VERSION, **to_plain(address)}
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(body, file)

    async def stop(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        await self._port.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            command, flow = str(request["command"]), request["flow"]
        except KeyError as error:
            raise ControlError(f"a request has no {error}") from error
        return await self._execute(command, flow)

    async def _execute(self, command: str, only: str | None) -> dict[str, Any]:
        flows = {n: flow for n, flow in self._flows.items() if only in (None, n)}
        for flow in flows.values():
            if command == "pause":
                flow.pause()
            elif command == "resume":
                flow.resume()
        # Concurrently: a flow with a slow source must not delay the status of other flows.
        found = await asyncio.gather(*(flow.status() for flow in flows.values()))
        statuses = dict(zip(flows, found, strict=True))
        return {
            "pid": os.getpid(),
            "flows": {
                name: None if status is None else status.to_json()
                for name, status in statuses.items()
            },
        }


def find_running_mirrors(name: str | None = None) -> list[Address]:
    """Find the mirrors that run on this machine, or the one with this name.

    A mirror of another shoal version raises an error only if no other mirror matches: it must not
    block commands to the others.
    """
    found: list[Address] = []
    refused: list[SystemFailure] = []
    for path in sorted(_folder().glob("*.json")):
        try:
            body = json.loads(path.read_bytes())
            os.kill(int(body["pid"]), 0)
            if name is None or name in body["flows"]:
                found.append(_address(body, path))
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except SystemFailure as error:
            refused.append(error)
        except (OSError, ValueError, TypeError, KeyError):
            continue
    if refused and not found:
        raise refused[0]
    for each in refused:
        _log.warning("command not sent: %s", each)
    return found


def _address(body: dict[str, Any], path: Path) -> Address:
    try:
        # Version 1 wrote no version field, and its responses had fewer fields.
        check_version(body.pop("version", 1), (VERSION,))
        return from_plain(Address, body)
    except FormatMismatch as error:
        raise SystemFailure(
            f"{path} {error}",
            remedy=f"use the shoal version that process {body.get('pid')} runs",
        ) from error


def send_command(command: str, name: str | None) -> list[dict[str, Any]]:
    """Send a command to the mirror with this name, or to all; returns one response per process."""
    if command not in COMMANDS:
        raise UsageError(f"{command!r} is not a mirror command: use one of {', '.join(COMMANDS)}")
    found = _find_addressed(name, is_for_all=command == "status")
    return [_send_command(address, command, name) for address in found]


def find_flows(name: str | None) -> list[str]:
    """The flows that a command to this mirror concerns; without a name only one may run."""
    found = _find_addressed(name, is_for_all=False)
    return [name] if name is not None else list(found[0].flows)


def _find_addressed(name: str | None, *, is_for_all: bool) -> list[Address]:
    found = find_running_mirrors(name)
    if not found:
        which = "no mirror" if name is None else f"no mirror named {name}"
        raise UnreachableError(
            f"{which} is running on this machine", remedy="start one with shoal mirror run"
        )
    if not is_for_all and len(found) > 1 and name is None:
        names = ", ".join(each for address in found for each in address.flows)
        raise UsageError(
            "several mirrors run on this machine", remedy=f"give --name, one of {names}"
        )
    return found


def _send_command(address: Address, command: str, flow: str | None) -> dict[str, Any]:
    request = {"token": address.token, "command": command, "flow": flow}
    try:
        return request_answer(address.port, request, timeout_s=PATIENCE_S)
    except (OSError, ControlError) as error:
        raise SystemFailure(
            f"the mirror with process id {address.pid} does not answer: {error}",
            remedy="check whether it hangs, and read its log",
        ) from error


def _folder() -> Path:
    return state_dir() / "mirrors"
