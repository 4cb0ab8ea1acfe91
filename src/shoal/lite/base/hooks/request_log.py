"""Records which requests clients send, once each: the input of the support matrix.

With SHOAL_REQUEST_LOG in its environment a broker writes into that folder, one line for each
kind of request that is new to it:

    client software <tab> its version <tab> API key <tab> API version <tab> served | refused

A client names its software in its ApiVersions request (KIP-511); other clients are recorded by
their client id.
"""

import os
from pathlib import Path
from typing import Final

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import WireError
from shoal.wire.messages import RequestFrame, decode_body, request_class

VARIABLE: Final = "SHOAL_REQUEST_LOG"
_FIRST_VERSION_WITH_SOFTWARE: Final = 3
# Clients could use an unlimited number of names.
_MOST_LINES: Final = 10_000


class RequestLog:
    """The kinds of requests that one broker has received."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}.tsv"
        # By client id.
        self._software: dict[str, tuple[str, str]] = {}
        self._noted: set[tuple[str, str, int, int, bool]] = set()

    @classmethod
    def of_environment(cls) -> "RequestLog | None":
        """The log for the folder in the environment, if it is set."""
        folder = os.environ.get(VARIABLE)
        return None if not folder else cls(Path(folder))

    def note(self, frame: memoryview, header: RequestFrame, *, is_served: bool) -> None:
        """Record a request."""
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
