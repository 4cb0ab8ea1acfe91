"""Says what a client asked for that Kafka Lite does not serve: once for each client and thing.

Rules of this file:
- A request of an unknown API or version closes its connection; the log says who sent it, what
  it was, and which versions are served.
- librdkafka with `group.protocol=consumer` sends nothing of the kind: it sees in ApiVersions that
  ConsumerGroupHeartbeat (KIP-848) is missing, and waits for ever. It is known by its silence: it
  looks up the coordinator of its group, and no request for a group follows.
- Clients can make up any number of names: `MOST_REPORTS` is the limit. Time is handed in.
"""

import logging
from typing import Final, NamedTuple

from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import RequestFrame

MOST_REPORTS: Final = 1_000
# A member of a group has joined, or asked for its offsets, by now.
SILENCE_S: Final = 5.0
GROUP_REQUESTS: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
    }
)
_logger = logging.getLogger(__name__)


class _Client(NamedTuple):
    """A client as far as a broker can tell clients apart."""

    client_id: str
    host: str


class _Lookup(NamedTuple):
    group: str
    at_s: float


class UnservedReports:
    """Which reports were made, and which clients have not asked yet for what they came for."""

    def __init__(self) -> None:
        self._made: set[tuple[str, ...]] = set()
        self._lookups: dict[_Client, _Lookup] = {}

    def report_request(self, header: RequestFrame, served: str) -> None:
        """A request that is not served; `served` says what is."""
        asked = f"{header.api_key.name} version {header.api_version}"
        client_id = (header.client_id or "")[:80]
        if self._is_new(client_id, asked):
            _logger.warning(
                "client %r asked for %s, which is not served (%s); its connection is closed",
                client_id,
                asked,
                served,
            )

    def on_lookup(self, header: RequestFrame, host: str, *, group: str, now_s: float) -> None:
        """A client was told that this broker coordinates its group."""
        if len(self._lookups) < MOST_REPORTS:
            self._lookups.setdefault(_client_of(header, host), _Lookup(group[:80], now_s))

    def on_group_request(self, header: RequestFrame, host: str) -> None:
        self._lookups.pop(_client_of(header, host), None)

    def look(self, now_s: float) -> None:
        """Name clients that have been silent for long."""
        silent = [c for c, found in self._lookups.items() if now_s - found.at_s > SILENCE_S]
        for client in silent:
            group = self._lookups.pop(client).group
            if self._is_new(*client, "silence"):
                _logger.warning(
                    "client %r at %s looked up the coordinator of group %r %g s ago and has sent "
                    "no request for a group since; if it is a consumer with "
                    "group.protocol=consumer: that protocol (KIP-848, ConsumerGroupHeartbeat) is "
                    "not served, and librdkafka waits without an error; use "
                    "group.protocol=classic",
                    client.client_id,
                    client.host.removeprefix("/"),
                    group,
                    SILENCE_S,
                )

    def _is_new(self, *key: str) -> bool:
        if key in self._made or len(self._made) >= MOST_REPORTS:
            return False
        self._made.add(key)
        return True


def _client_of(header: RequestFrame, host: str) -> _Client:
    return _Client((header.client_id or "")[:80], host)
