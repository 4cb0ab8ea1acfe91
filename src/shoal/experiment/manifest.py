"""The manifest `created.json`: what a run creates on clusters, recorded before it is created.

Rules:
- A topic is recorded before it is created, and its id as soon as it is known. So nothing is
  forgotten after a crash, and a topic of the same name that was created later is recognised.
- What existed before the run is never recorded. Topics that a mirror creates, as copies or for
  itself, are recorded like the run's own.
- Passwords are not recorded; `shoal clean` needs them again.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

from shoal.model.errors import LedgerError
from shoal.model.json_files import read_json
from shoal.model.serialised import FormatMismatch, from_plain, to_plain

MANIFEST: Final = "created.json"
FORMAT: Final = 1
_SECRET: Final = re.compile(r"password|secret|jaas|token|\.key$", re.IGNORECASE)

Json = dict[str, Any]


@dataclass(slots=True)
class CreatedResources:
    """What a run created, or may have created, on one cluster."""

    client: Annotated[dict[str, str], "client"]  # client properties without passwords
    # Topic id by name; None: not known.
    topics: Annotated[dict[str, str | None], "topics"] = field(default_factory=dict)
    groups: Annotated[list[str], "groups"] = field(default_factory=list)


class Manifest:
    """The manifest file and its content."""

    def __init__(self, run_dir: Path, clusters: dict[str, CreatedResources]) -> None:
        self._file = run_dir / MANIFEST
        self.clusters = clusters

    @classmethod
    def begin(cls, run_dir: Path, clients: Mapping[str, Mapping[str, str]]) -> Self:
        """Write an empty manifest; `clients` are the client properties by cluster."""
        clusters = {
            role: CreatedResources({k: str(v) for k, v in client.items() if not _SECRET.search(k)})
            for role, client in clients.items()
        }
        manifest = cls(run_dir, clusters)
        manifest.save()
        return manifest

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """Read the manifest of a run."""
        body = read_json(run_dir / MANIFEST)
        try:
            if body["format"] != FORMAT:
                raise LedgerError(
                    f"{run_dir / MANIFEST} has format {body['format']!r:.40}, this version of shoal"
                    f" knows {FORMAT}",
                    remedy="clean up with the version of shoal that wrote it",
                )
            clusters = {
                role: from_plain(CreatedResources, created)
                for role, created in body["clusters"].items()
            }
        except (KeyError, TypeError, AttributeError, FormatMismatch) as error:
            raise LedgerError(f"{run_dir / MANIFEST} is not a manifest: {error}") from error
        return cls(run_dir, clusters)

    def record_topics(self, role: str, names: Iterable[str]) -> None:
        for name in names:
            self.clusters[role].topics.setdefault(name, None)
        self.save()

    def record_ids(self, role: str, ids: Mapping[str, object]) -> None:
        known = {name: str(found) for name, found in ids.items() if found is not None}
        self.clusters[role].topics.update(known)
        self.save()

    def record_groups(self, role: str, names: Iterable[str]) -> None:
        self.clusters[role].groups += [n for n in names if n not in self.clusters[role].groups]
        self.save()

    def save(self) -> None:
        clusters = {role: to_plain(one) for role, one in self.clusters.items()}
        text = json.dumps({"format": FORMAT, "clusters": clusters}, indent=2)
        scratch = self._file.with_name(f".{MANIFEST}")
        scratch.write_text(text + "\n", encoding="utf-8")
        scratch.replace(self._file)
