"""How controllers that are started one by one form a quorum, and how a new one finds it.

A voter is a node id and a directory id, and a disk gets its directory id at its first use. So the
first start needs all configured controllers: each generates a directory id, stores it, and
exchanges it with the others. When a controller knows all of them, they are its proposal for the
voters, which it stores and never changes. When all propose the same, that is the quorum.

Since a quorum begins only if all have proposed it, and no controller proposes two, there cannot be
two quorums of one cluster, even if controllers crash or lose their disks.

A controller with an empty disk that finds a quorum in which its id has another directory id has
lost its votes there, and is rejected. A controller whose id is not in the quorum becomes an
observer, and asks for a vote later.

Rules of this file:
- `VoterAgreement` is pure; `FoundingState` is its file.
"""

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from shoal.lite.metadata.data.requests import ControllerIdentity
from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.model.errors import SystemFailure
from shoal.model.serialised import FormatMismatch, check_version

FOUNDING_NAME = "founding.json"
VERSION = 2
_REMEDY = "start the controller with the version of shoal that wrote it"
VoterIds = tuple[tuple[int, UUID], ...]


class WrongDirectory(SystemFailure):
    """The quorum knows this controller by another directory id."""

    def __init__(self, node_id: int, directory: UUID) -> None:
        super().__init__(
            f"controller {node_id} is known to the quorum by another disk, with directory id "
            f"{directory}",
            remedy="start it with that disk; or, if that disk is lost, with --replace",
        )
        self.directory = directory


@dataclass(frozen=True, slots=True)
class FoundingState:
    """What a controller has stored before it is a member of a quorum."""

    node_id: int
    directory: UUID
    proposal: VoterIds | None = None

    @classmethod
    def open(cls, folder: Path, node_id: int) -> "FoundingState":
        """Load the state from the folder, or store a new one with a random directory id."""
        path = folder / FOUNDING_NAME
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
            raise SystemFailure(
                f"{folder} is the folder of controller {draft.node_id}, not of {node_id}",
                remedy=f"start it with that id, or give controller {node_id} a folder of its own",
            )
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
        replace_file(folder / FOUNDING_NAME, json.dumps(content).encode())


class VoterAgreement:
    """The agreement of one controller with the others on the voters.

    Pass it every identity that arrives; save `state` before you answer.
    """

    def __init__(self, draft: FoundingState, named: Collection[int]) -> None:
        """`named` are all controllers of the future quorum, including this one."""
        self.state = draft
        self._others = set(named) - {draft.node_id}
        self._identities: dict[int, ControllerIdentity] = {}
        # The voters of the quorum, once they are known; this controller may not be one of them.
        self.voters: VoterIds | None = None
        self._propose()

    def identity(self) -> ControllerIdentity:
        draft = self.state
        return ControllerIdentity(draft.node_id, draft.directory, draft.proposal, is_member=False)

    def missing(self) -> list[int]:
        """The controllers whose identity has not arrived."""
        return sorted(self._others - self._identities.keys())

    def on_identity(self, other: ControllerIdentity) -> None:
        """Take in the identity of another controller.

        `WrongDirectory` if the quorum has this controller's id with another directory id.
        """
        if other.node_id not in self._others:
            return
        self._identities[other.node_id] = other
        if other.is_member and other.voters is not None:
            self._check_disk(dict(other.voters))
            self.voters = other.voters
        else:
            self._propose()

    def _check_disk(self, voters: dict[int, UUID]) -> None:
        known = voters.get(self.state.node_id)
        if known is not None and known != self.state.directory:
            raise WrongDirectory(self.state.node_id, known)

    def _propose(self) -> None:
        if self.state.proposal is None and not self.missing():
            disks = {other.node_id: other.directory for other in self._identities.values()}
            disks[self.state.node_id] = self.state.directory
            draft = self.state
            self.state = FoundingState(draft.node_id, draft.directory, tuple(sorted(disks.items())))
        if self.state.proposal is not None and not self.missing():
            proposals = {other.voters for other in self._identities.values()}
            if proposals <= {self.state.proposal}:
                self.voters = self.state.proposal

    def disagreement(self) -> str | None:
        """Why the controllers can never agree, if their proposals differ."""
        for other in self._identities.values():
            if other.is_member or other.voters is None or self.state.proposal is None:
                continue
            if other.voters != self.state.proposal:
                return (
                    f"controllers {self.state.node_id} and {other.node_id} propose different "
                    "voters: a disk was emptied, or they were started with different --controllers"
                )
        return None
