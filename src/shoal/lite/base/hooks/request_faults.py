"""Injected faults of requests, a given number of times.

    error        answered with an error code; the request is not executed
    hang-up      the connection is closed; the request is not executed
    lost-answer  the request is executed, and the connection is closed instead of an answer

Fetches of followers are not affected: a test that fails fetches means those of consumers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from shoal.model.serialised import from_plain
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import RequestFrame

How = Literal["error", "hang-up", "lost-answer"]
# The prefix of the client ids of nodes.
NODE_CLIENT_PREFIX = "shoal-node-"


@dataclass(slots=True)
class RequestFault:
    """Lets the next `remaining` requests of an API fail; of one client only, if it is named."""

    number: Annotated[int, "number"]
    api_key: Annotated[int, "api_key"]
    remaining: Annotated[int, "left"]
    how: Annotated[How, "how"]
    error_code: Annotated[int, "error_code"] = 0
    client_id: Annotated[str | None, "client_id"] = None

    def matches(self, header: RequestFrame) -> bool:
        if header.api_key != self.api_key or self.remaining <= 0:
            return False
        client_id = header.client_id or ""
        if self.client_id is not None:
            return client_id == self.client_id
        return header.api_key != ApiKey.FETCH or not client_id.startswith(NODE_CLIENT_PREFIX)


class RequestFaults:
    """The request faults of one node. `on_hit` is called for each request that a fault affects."""

    def __init__(self) -> None:
        self._faults: dict[int, RequestFault] = {}
        self.on_hit: Callable[[int], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._faults)

    def change(self, faults: Iterable[dict[str, Any]]) -> None:
        """Replace the faults; one that is already present keeps its count."""
        wanted = [from_plain(RequestFault, values) for values in faults]
        self._faults = {
            fault.number: self._faults.get(fault.number, fault)
            for fault in wanted
            if fault.remaining
        }

    def take(self, header: RequestFrame) -> RequestFault | None:
        """The fault for this request, if any; decrements its count."""
        for fault in self._faults.values():
            if fault.matches(header):
                fault.remaining -= 1
                if fault.remaining == 0:
                    del self._faults[fault.number]
                if self.on_hit is not None:
                    self.on_hit(fault.number)
                return fault
        return None
