"""Logs which unsupported APIs clients use, once per client and API.

Rules of this file:
- A request of an unsupported API or version closes its connection; the log names the client, the
  request and the supported versions.
- librdkafka with `group.protocol=consumer` sends no such request: it sees in ApiVersions that
  ConsumerGroupHeartbeat (KIP-848) is missing, and waits forever. It is recognised by its silence:
  it looks up the coordinator of its group, and no request for a group follows.
- Clients can invent any number of names, so `MOST_REPORTS` is the limit. The caller passes the
  time.
"""

import logging
from typing import Final, NamedTuple

from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import RequestFrame

MOST_REPORTS: Final = 1_000
# By then, a member of a group has joined or fetched its offsets.
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
    """A client, identified as well as a broker can."""

    client_id: str
    host: str


class _Lookup(NamedTuple):
    group: str
    at_s: float


class UnservedReports:
    """The reports already logged, and clients that looked up a coordinator and then fell silent."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, ...]] = set()
        self._lookups: dict[_Client, _Lookup] = {}

    def report_request(self, header: RequestFrame, served: str) -> None:
        """Log an unsupported request; `served` names the supported versions."""
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
        """Record that FindCoordinator named this broker as the coordinator of a client's group."""
        if len(self._lookups) < MOST_REPORTS:
            self._lookups.setdefault(_client_of(header, host), _Lookup(group[:80], now_s))

    def on_group_request(self, header: RequestFrame, host: str) -> None:
        self._lookups.pop(_client_of(header, host), None)

    def report_silent_clients(self, now_s: float) -> None:
        """Log the clients that have sent no group request for too long."""
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
        if key in self._reported or len(self._reported) >= MOST_REPORTS:
            return False
        self._reported.add(key)
        return True


def _client_of(header: RequestFrame, host: str) -> _Client:
    return _Client((header.client_id or "")[:80], host)
