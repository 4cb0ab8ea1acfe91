"""The two small files of a member: its identity, and its vote.

Rules of this file:
- They are JSON, with a format version and a checksum, and are replaced whole.
- One that is missing, damaged or of another version is an error that names it: to start
  without it could mean a second vote in the same epoch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from shoal.lite.raft.model import QuorumState, ReplicaKey, Voter, Voters
from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.wire.records.crc import crc32c

FORMAT = 1
MEMBER_NAME = "member.json"
QUORUM_STATE_NAME = "quorum-state.json"

RESTORE_DISK = "restore the disk, or remove this member from the quorum and add a new one"
_Parsed = TypeVar("_Parsed")


def write_member(folder: Path, key: ReplicaKey, voters: Voters) -> None:
    """Store the identity of the member, and the voters when the quorum begins."""
    fields = {
        "node_id": key.id,
        "directory_id": str(key.directory),
        "voters": [
            {"id": v.id, "directory_id": str(v.directory), "host": v.host, "port": v.port}
            for v in voters
        ],
    }
    _write(folder / MEMBER_NAME, fields)


def read_member(folder: Path) -> tuple[ReplicaKey, Voters]:
    def parse(fields: dict[str, Any]) -> tuple[ReplicaKey, Voters]:
        voters = [
            Voter(int(v["id"]), UUID(v["directory_id"]), str(v["host"]), int(v["port"]))
            for v in fields["voters"]
        ]
        return ReplicaKey(int(fields["node_id"]), UUID(fields["directory_id"])), Voters(voters)

    return _read(folder / MEMBER_NAME, parse)


def write_quorum_state(folder: Path, state: QuorumState) -> None:
    voted_for = state.voted_for
    fields = {
        "epoch": state.epoch,
        "voted_id": None if voted_for is None else voted_for.id,
        "voted_directory_id": None if voted_for is None else str(voted_for.directory),
        "leader_id": state.leader_id,
    }
    _write(folder / QUORUM_STATE_NAME, fields)


def read_quorum_state(folder: Path) -> QuorumState:
    def parse(fields: dict[str, Any]) -> QuorumState:
        voted_for = None
        if fields["voted_id"] is not None:
            voted_for = ReplicaKey(int(fields["voted_id"]), UUID(fields["voted_directory_id"]))
        leader_id = None if fields["leader_id"] is None else int(fields["leader_id"])
        return QuorumState(int(fields["epoch"]), voted_for, leader_id)

    return _read(folder / QUORUM_STATE_NAME, parse)


def _write(path: Path, fields: dict[str, Any]) -> None:
    content = {"format": FORMAT, **fields, "checksum": _checksum(fields)}
    replace_file(path, json.dumps(content, indent=1).encode() + b"\n")


def _read(path: Path, parse: Callable[[dict[str, Any]], _Parsed]) -> _Parsed:
    try:
        fields = json.loads(path.read_bytes())
        version = fields.pop("format")
        checksum = fields.pop("checksum")
    except FileNotFoundError:
        raise DamagedFile(f"{path} is missing", remedy=RESTORE_DISK) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path} is damaged: {error!r}", remedy=RESTORE_DISK) from error
    if version != FORMAT:
        raise DamagedFile(
            f"{path} has format {version}, this version of shoal knows {FORMAT}",
            remedy="use the version of shoal that wrote it",
        )
    if checksum != _checksum(fields):
        raise DamagedFile(f"{path} is damaged: its checksum is wrong", remedy=RESTORE_DISK)
    try:
        return parse(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            f"{path} lacks a field or has an invalid one: {error!r}", remedy=RESTORE_DISK
        ) from error


def _checksum(fields: dict[str, Any]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True).encode())
