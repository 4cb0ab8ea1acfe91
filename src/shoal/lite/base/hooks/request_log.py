"""Which requests clients send, written down once each: what the support matrix is made of.

With SHOAL_REQUEST_LOG in its environment a broker writes into that folder, one line for each
kind of request that is new to it:

    client software <tab> its version <tab> API key <tab> API version <tab> served | refused

A client tells its software when it asks for API versions (KIP-511); those that do not are known
by their client id.
"""

import os
from pathlib import Path
from typing import Final

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.messages import RequestFrame, decode_body, request_class

VARIABLE: Final = "SHOAL_REQUEST_LOG"
_FIRST_VERSION_WITH_SOFTWARE: Final = 3
# A client may make up any number of names.
_MOST_LINES: Final = 10_000


class RequestLog:
    """What one broker has been asked so far."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.tsv"
        # By client id.
        self._software: dict[str, tuple[str, str]] = {}
        self._noted: set[tuple[str, str, int, int, bool]] = set()

    @classmethod
    def of_environment(cls) -> "RequestLog | None":
        """The log that was asked for, if it was."""
        folder = os.environ.get(VARIABLE)
        return None if not folder else cls(Path(folder))

    def note(self, frame: memoryview, header: RequestFrame, *, is_served: bool) -> None:
        """A request has come."""
        if len(self._noted) >= _MOST_LINES:
            return
        client_id = header.client_id or ""
        if header.api_key == ApiKey.API_VERSIONS and is_served:
            self._learn(client_id, frame, header)
        software, version = self._software.get(client_id, (client_id or "unnamed", ""))
        entry = (software, version, int(header.api_key), header.api_version, is_served)
        if entry not in self._noted:
            self._noted.add(entry)
            outcome = "served" if is_served else "refused"
            with self._path.open("a") as file:
                file.write("\t".join(map(str, (*entry[:4], outcome))) + "\n")

    def _learn(self, client_id: str, frame: memoryview, header: RequestFrame) -> None:
        if header.api_version < _FIRST_VERSION_WITH_SOFTWARE:
            return
        try:
            cls = request_class(header.api_key, header.api_version)
            body = decode_body(frame, cls, header.body_position)
        except WireError:
            return
        name, version = body.client_software_name, body.client_software_version
        self._software[client_id] = (name[:80], version[:80])
