"""What a run makes on clusters, written down before it is made: `created.json`.

Rules:
- A topic is entered before it is created, and its id once it is known: so nothing that a crash
  leaves is forgotten, and a namesake that somebody else made later is told from it.
- What was there before the run is never entered. Copies that a mirror makes, and the mirror's
  own topics, are entered like the run's.
- No password is written down: whoever cleans up gives them again.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

from shoal.experiment.runs import read_json
from shoal.model.errors import LedgerError
from shoal.model.serialised import FormatMismatch, from_plain, to_plain

MANIFEST: Final = "created.json"
FORMAT: Final = 1
_SECRET: Final = re.compile(r"password|secret|jaas|token|\.key$", re.IGNORECASE)

Json = dict[str, Any]


@dataclass(slots=True)
class Created:
    """What a run has, or may have, on one cluster."""

    client: Annotated[dict[str, str], "client"]  # how it is reached, but for passwords
    # Id by name; None: not known.
    topics: Annotated[dict[str, str | None], "topics"] = field(default_factory=dict)
    groups: Annotated[list[str], "groups"] = field(default_factory=list)


class Manifest:
    """The file, and what stands in it."""

    def __init__(self, run_dir: Path, clusters: dict[str, Created]) -> None:
        self._file = run_dir / MANIFEST
        self.clusters = clusters

    @classmethod
    def begin(cls, run_dir: Path, clients: Mapping[str, Mapping[str, str]]) -> Self:
        """An empty one, by cluster with the properties that reach it."""
        clusters = {
            role: Created({k: str(v) for k, v in client.items() if not _SECRET.search(k)})
            for role, client in clients.items()
        }
        manifest = cls(run_dir, clusters)
        manifest.save()
        return manifest

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The manifest of a run that was."""
        body = read_json(run_dir / MANIFEST)
        try:
            if body["format"] != FORMAT:
                raise LedgerError(
                    f"{run_dir / MANIFEST} has format {body['format']!r:.40}, this version of shoal"
                    f" knows {FORMAT}",
                    remedy="clean up with the version of shoal that wrote it",
                )
            clusters = {
                role: from_plain(Created, created) for role, created in body["clusters"].items()
            }
        except (KeyError, TypeError, AttributeError, FormatMismatch) as error:
            raise LedgerError(f"{run_dir / MANIFEST} is not a manifest: {error}") from error
        return cls(run_dir, clusters)

    def enter_topics(self, role: str, names: Iterable[str]) -> None:
        for name in names:
            self.clusters[role].topics.setdefault(name, None)
        self.save()

    def enter_ids(self, role: str, ids: Mapping[str, object]) -> None:
        known = {name: str(found) for name, found in ids.items() if found is not None}
        self.clusters[role].topics.update(known)
        self.save()

    def enter_groups(self, role: str, names: Iterable[str]) -> None:
        self.clusters[role].groups += [n for n in names if n not in self.clusters[role].groups]
        self.save()

    def save(self) -> None:
        clusters = {role: to_plain(one) for role, one in self.clusters.items()}
        text = json.dumps({"format": FORMAT, "clusters": clusters}, indent=2)
        scratch = self._file.with_name(f".{MANIFEST}")
        scratch.write_text(text + "\n", encoding="utf-8")
        scratch.replace(self._file)
