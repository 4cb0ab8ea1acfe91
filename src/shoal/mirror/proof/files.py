"""The files of a continuous proof, beside the events of the mirror: `docs/reference/formats.md`.

Rules:
- `proof.json` says up to which source offset each partition is equal at the target, and when that
  was established. Anyone may read it; it is replaced atomically about once a second.
- `proof-resume.json` says where the comparison continues after a restart. Only the comparison
  reads it, and checks that topics and the last compared batches are still the same.
- `proof.lock` is locked by the process that compares, so that there is one for each mirror.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Final

from shoal.mirror.proof.comparison import Difference
from shoal.mirror.proof.log import Tail
from shoal.mirror.status import PartitionStatus
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain
from shoal.runtime.paths import make_folder

VERSION: Final = 2
FILE_NAME: Final = "proof.json"
RESUME_NAME: Final = "proof-resume.json"
LOCK_NAME: Final = "proof.lock"
FILE_LIMIT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """One partition; offsets are -1 where they are unknown."""

    source: Annotated[str, "source"]  # as "orders-0"
    target: Annotated[str, "target"]
    proven_offset: Annotated[int, "proven_offset"]  # below it every record is equal at the target
    source_end: Annotated[int, "source_end"]
    at_us: Annotated[int, "at_us"]  # when both sides were last looked at
    checksum: Annotated[str, "checksum"]  # of the source's batches that were compared
    unavailable: Annotated[str, "unavailable"] = ""
    difference: Annotated[Difference | None, "difference"] = None
    # Of the topics that were compared; None if they have no ids.
    source_topic_id: Annotated[str | None, "source_topic_id"] = None
    target_topic_id: Annotated[str | None, "target_topic_id"] = None

    def is_of(self, source_topic_id: str | None, target_topic_id: str | None) -> bool:
        """Whether this is about these topics, not about former or others of the same name."""
        return not (
            has_other_id(self.source_topic_id, source_topic_id)
            or has_other_id(self.target_topic_id, target_topic_id)
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a mirror's copy is proven."""

    mirror: Annotated[str, "mirror"]
    source: Annotated[str, "source"]  # bootstrap.servers
    target: Annotated[str, "target"]
    pid: Annotated[int, "pid"]
    at_us: Annotated[int, "at_us"]
    partitions: Annotated[list[PartitionProof], "partitions"] = field(default_factory=list)

    def select(self, statuses: Iterable[PartitionStatus]) -> dict[str, PartitionProof]:
        """Those of what a mirror copies now, by source partition.

        The file may be older than the mirror's topics, or be of other clusters.
        """
        proofs = {each.source: each for each in self.partitions}
        return {
            name: proofs[name]
            for each in statuses
            if (name := str(each.route.source)) in proofs
            and proofs[name].target == str(each.route.target)
            and proofs[name].is_of(each.source_topic_id, each.target_topic_id)
        }


@dataclass(frozen=True, slots=True)
class PartitionCheckpoint:
    """Where the comparison of one partition continues, and what must be unchanged for that."""

    source: Annotated[str, "source"]
    target: Annotated[str, "target"]
    source_offset: Annotated[int, "source_offset"]
    target_offset: Annotated[int, "target_offset"]
    source_topic_id: Annotated[str | None, "source_topic_id"]
    target_topic_id: Annotated[str | None, "target_topic_id"]
    source_tail: Annotated[Tail | None, "source_tail"]
    target_tail: Annotated[Tail | None, "target_tail"]
    checksum: Annotated[str, "checksum"]


@dataclass(frozen=True, slots=True)
class ProofCheckpoint:
    """Where a comparison continues."""

    source_cluster: Annotated[str | None, "source_cluster"]
    target_cluster: Annotated[str | None, "target_cluster"]
    partitions: Annotated[list[PartitionCheckpoint], "partitions"] = field(default_factory=list)


def lock_folder(folder: Path) -> IO[str]:
    """Hold the lock of a folder as long as the returned file is open."""
    file = (make_folder(folder, variable="XDG_STATE_HOME") / LOCK_NAME).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"another process proves this mirror: it holds {folder / LOCK_NAME}",
            remedy="read its result with `shoal mirror status`, or give another --name",
        ) from None
    return file


def write_file(path: Path, content: Proof | ProofCheckpoint) -> None:
    """Replace a file atomically."""
    fresh = path.with_name(path.name + ".new")
    body = {"version": VERSION, **to_plain(content)}
    try:
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise SystemFailure(
            f"cannot write {path}: {error.strerror}",
            remedy="free some space, or set XDG_STATE_HOME to a folder that you may write to",
        ) from error


def read_proof(folder: Path) -> Proof | None:
    """The proof of a mirror; None if there is none that this version can read."""
    body = _read(folder / FILE_NAME)
    try:
        return None if body is None else from_plain(Proof, body)
    except FormatMismatch:
        return None


def read_resume(folder: Path) -> ProofCheckpoint | None:
    """Where to continue; None if that is not known."""
    body = _read(folder / RESUME_NAME)
    try:
        return None if body is None else from_plain(ProofCheckpoint, body)
    except FormatMismatch:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            return None
        body: dict[str, Any] = json.loads(path.read_bytes())
        check_version(body.pop("version"), (VERSION,))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return body
