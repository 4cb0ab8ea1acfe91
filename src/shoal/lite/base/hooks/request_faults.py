"""Requests that go wrong on purpose, so many times.

    error        answered with an error code; nothing is done
    hang-up      the connection is closed; nothing is done
    lost-answer  it is done, and the connection is closed in place of an answer

Fetches of followers are let through: a test that fails fetches means those of consumers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoal.model.serialised import from_plain
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import RequestFrame

How = Literal["error", "hang-up", "lost-answer"]
# What brokers call themselves when they fetch from each other.
NODE_CLIENT_PREFIX = "shoal-node-"


@dataclass(slots=True)
class RequestFault:
    """The next `left` requests of an API go wrong; of one client only if that is named."""

    number: Annotated[int, "number"]
    api_key: Annotated[int, "api_key"]
    left: Annotated[int, "left"]
    how: Annotated[How, "how"]
    error_code: Annotated[int, "error_code"] = 0
    client_id: Annotated[str | None, "client_id"] = None

    def is_about(self, header: RequestFrame) -> bool:
        if header.api_key != self.api_key or self.left <= 0:
            return False
        client_id = header.client_id or ""
        if self.client_id is not None:
            return client_id == self.client_id
        return header.api_key != ApiKey.FETCH or not client_id.startswith(NODE_CLIENT_PREFIX)


class RequestFaults:
    """The faults of one node. `on_hit` is told of each request that went wrong."""

    def __init__(self) -> None:
        self._faults: dict[int, RequestFault] = {}
        self.on_hit: Callable[[int], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._faults)

    def change(self, faults: Iterable[dict[str, Any]]) -> None:
        """These are the faults from now on; one that was there already goes on counting."""
        wanted = [from_plain(RequestFault, values) for values in faults]
        self._faults = {
            fault.number: self._faults.get(fault.number, fault) for fault in wanted if fault.left
        }

    def take(self, header: RequestFrame) -> RequestFault | None:
        """The fault that this request meets; it counts as met."""
        for fault in self._faults.values():
            if fault.is_about(header):
                fault.left -= 1
                if fault.left == 0:
                    del self._faults[fault.number]
                if self.on_hit is not None:
                    self.on_hit(fault.number)
                return fault
        return None
