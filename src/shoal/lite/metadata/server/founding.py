"""How controllers that are started one by one become a quorum, and how a new one finds it.

A voter is an id and a disk, and disks get their ids when they are first used. So the first start
needs all controllers that are named: each makes up an id for its disk, writes it down, and hears
those of the others. When it knows all of them, that is its proposal for the voters, which it
writes down and never changes. When all propose the same, that is the quorum.

Since a quorum begins only if everybody has proposed it, and nobody ever proposes two, there
cannot be two quorums of one cluster, whatever crashes and whoever loses its disk meanwhile.

A controller with an empty disk that meets a quorum in which its id has another disk has lost
what it promised there, and is refused. One whose id is not in it becomes an observer, and asks
for a vote later.

Rules of this file:
- `Founder` is pure; `Draft` is its file.
"""

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from shoal.lite.metadata.data.requests import Introduction
from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.model.errors import SystemFailure
from shoal.model.serialised import FormatMismatch, check_version

DRAFT_NAME = "founding.json"
VERSION = 2
_REMEDY = "start the controller with the version of shoal that wrote it"
Disks = tuple[tuple[int, UUID], ...]


class Contradicted(SystemFailure):
    """The quorum knows this controller by another disk."""

    def __init__(self, node_id: int, directory: UUID) -> None:
        super().__init__(
            f"controller {node_id} is known to the quorum by another disk, {directory}",
            remedy="start it with that disk; or, if that is lost, with --replace",
        )
        self.directory = directory


@dataclass(frozen=True, slots=True)
class Draft:
    """What a controller has written down before it is a member of a quorum."""

    node_id: int
    directory: UUID
    proposal: Disks | None = None

    @classmethod
    def open(cls, folder: Path, node_id: int) -> "Draft":
        """What is in the folder; a new disk if there is nothing."""
        path = folder / DRAFT_NAME
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = cls(node_id, uuid.uuid4())
            draft.save(folder)
            return draft
        try:
            content = json.loads(path.read_bytes())
            # Version 1 did not name itself; it has the same fields.
            check_version(content.get("version", 1), (1, VERSION))
            proposal = content["proposal"]
            draft = cls(
                int(content["node_id"]),
                UUID(content["directory_id"]),
                None if proposal is None else tuple((int(i), UUID(d)) for i, d in proposal),
            )
        except FormatMismatch as error:
            raise DamagedFile(f"{path} {error}", remedy=_REMEDY) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{path} is damaged: {error!r}") from error
        if draft.node_id != node_id:
            raise SystemFailure(f"{folder} is the disk of controller {draft.node_id}")
        return draft

    def save(self, folder: Path) -> None:
        proposal = None
        if self.proposal is not None:
            proposal = [[node_id, str(directory)] for node_id, directory in self.proposal]
        content = {
            "version": VERSION,
            "node_id": self.node_id,
            "directory_id": str(self.directory),
            "proposal": proposal,
        }
        replace_file(folder / DRAFT_NAME, json.dumps(content).encode())


class Founder:
    """One controller on its way into a quorum. Tell it what was heard; save `draft` first."""

    def __init__(self, draft: Draft, named: Collection[int]) -> None:
        """`named` are all controllers that the quorum is to have, with this one."""
        self.draft = draft
        self._others = set(named) - {draft.node_id}
        self._heard: dict[int, Introduction] = {}
        # The voters to begin with, once they are known; this controller may not be one of them.
        self.voters: Disks | None = None
        self._propose()

    def introduction(self) -> Introduction:
        draft = self.draft
        return Introduction(draft.node_id, draft.directory, draft.proposal, is_member=False)

    def missing(self) -> list[int]:
        """Who has not been heard of."""
        return sorted(self._others - self._heard.keys())

    def heard(self, other: Introduction) -> None:
        """Another controller has told who it is; `Contradicted` if we have another's id."""
        if other.node_id not in self._others:
            return
        self._heard[other.node_id] = other
        if other.is_member and other.voters is not None:
            self._check_disk(dict(other.voters))
            self.voters = other.voters
        else:
            self._propose()

    def _check_disk(self, voters: dict[int, UUID]) -> None:
        known = voters.get(self.draft.node_id)
        if known is not None and known != self.draft.directory:
            raise Contradicted(self.draft.node_id, known)

    def _propose(self) -> None:
        if self.draft.proposal is None and not self.missing():
            disks = {other.node_id: other.directory for other in self._heard.values()}
            disks[self.draft.node_id] = self.draft.directory
            draft = self.draft
            self.draft = Draft(draft.node_id, draft.directory, tuple(sorted(disks.items())))
        if self.draft.proposal is not None and not self.missing():
            proposals = {other.voters for other in self._heard.values()}
            if proposals <= {self.draft.proposal}:
                self.voters = self.draft.proposal

    def disagreement(self) -> str | None:
        """Why there will never be a quorum, if that is so."""
        for other in self._heard.values():
            if other.is_member or other.voters is None or self.draft.proposal is None:
                continue
            if other.voters != self.draft.proposal:
                return (
                    f"controllers {self.draft.node_id} and {other.node_id} know each other's disks "
                    "differently: one was emptied, or other controllers were named"
                )
        return None
