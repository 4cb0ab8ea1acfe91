"""All injected faults of a cluster, kept by its supervisor, which sends each node its own.

Faults outlive the processes that they affect: a restarted node gets them again, until they are
healed. Pure: values in, values out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.lite.base.hooks.request_faults import RequestFault
from shoal.lite.storage.disk import DiskFault
from shoal.model.errors import ShoalError, UsageError
from shoal.model.serialised import arguments_of, to_plain
from shoal.net.link_faults import NO_EFFECT, LinkEffect
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code

_WAYS_TO_FAIL = ("error", "hang-up", "lost-answer")
# From here on API keys are shoal's own; error answers for them cannot be derived.
FIRST_SHOAL_API_KEY = 10_000
_MAX_TIMES = 1_000_000_000
_MAX_DELAY_MS = 3_600_000
_MAX_BYTES_PER_S = 1_000_000_000_000


@dataclass(slots=True)
class FaultPlan:
    """The current faults."""

    # By the node that sends and the node that receives.
    ways: dict[tuple[int, int], LinkEffect] = field(default_factory=dict)
    # How often links were reset: a reset is momentary and needs no healing.
    resets: dict[tuple[int, int], int] = field(default_factory=dict)
    # How often background tasks were asked to fail, by node and name: momentary too.
    tasks: dict[tuple[int, str], int] = field(default_factory=dict)
    disks: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: dict[int, tuple[int, RequestFault]] = field(default_factory=dict)
    _last_number: int = 0

    # Injecting

    def inject(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        """Apply a command; returns values for its answer. `UsageError` if it is invalid."""
        kind = command.get("kind")
        try:
            if kind == "link":
                return self._link(command, node_ids)
            if kind == "reset":
                return self._reset(command, node_ids)
            if kind == "task":
                return self._task(command, node_ids)
            if kind == "isolate":
                return self._isolate(command, node_ids)
            if kind == "disk":
                return self._disk(command, node_ids)
            if kind == "request":
                return self._request(command, node_ids)
            if kind == "heal":
                self._heal()
                return {}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"invalid fault: {error!r}") from error
        raise UsageError(f"unknown kind of fault {kind!r}")

    def _link(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        source, target = _ends(command, node_ids)
        way = LinkEffect(
            is_cut=bool(command["is_cut"]),
            delay_ms=_require_integer(command, "delay_ms"),
            bytes_per_s=_require_integer(command, "bytes_per_s"),
        )
        if not 0 <= way.delay_ms <= _MAX_DELAY_MS:
            raise UsageError(
                f"{way.delay_ms} ms is not a valid delay", remedy="use 0 to 3600000 ms"
            )
        if not 0 <= way.bytes_per_s <= _MAX_BYTES_PER_S:
            raise UsageError(
                f"{way.bytes_per_s} bytes per second is not a valid bandwidth",
                remedy="use 1 or more, or 0 for no limit",
            )
        pairs = [(source, target)] if command["one_way"] else [(source, target), (target, source)]
        for pair in pairs:
            if way == NO_EFFECT:
                self.ways.pop(pair, None)
            else:
                self.ways[pair] = way
        return {}

    def _reset(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        source, target = _ends(command, node_ids)
        pair = min(source, target), max(source, target)
        self.resets[pair] = self.resets.get(pair, 0) + 1
        return {}

    def _task(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        key = _require_node(command["node"], node_ids), str(command["task"])
        self.tasks[key] = self.tasks.get(key, 0) + 1
        return {}

    def _isolate(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _require_node(command["node"], node_ids)
        for other in set(node_ids) - {node_id}:
            self.ways[node_id, other] = self.ways[other, node_id] = LinkEffect(is_cut=True)
        return {}

    def _disk(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _require_node(command["node"], node_ids)
        fault = command["fault"]
        if fault is None:
            self.disks.pop(node_id, None)
            return {}
        try:
            DiskFault(**arguments_of(DiskFault, fault))
        except ShoalError as error:
            raise UsageError(error.message, remedy=error.remedy) from error
        self.disks[node_id] = dict(fault)
        return {}

    def _request(self, command: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _require_node(command["node"], node_ids)
        fault = RequestFault(
            self._last_number + 1,
            int(command["api_key"]),
            _require_integer(command, "times"),
            command["how"],
            int(command["error_code"]),
            command["client_id"],
        )
        if fault.how not in _WAYS_TO_FAIL:
            raise UsageError(
                f"unknown kind of request fault {fault.how!r}", remedy=", ".join(_WAYS_TO_FAIL)
            )
        if not 1 <= fault.remaining <= _MAX_TIMES:
            raise UsageError(f"requests cannot fail {fault.remaining} times; use 1 to {_MAX_TIMES}")
        if fault.api_key not in set(ApiKey):
            raise UsageError(f"unknown API key {fault.api_key}")
        if fault.how == "error" and (fault.error_code == 0 or fault.error_code not in set(Code)):
            raise UsageError(f"{fault.error_code} is not an error code of Kafka")
        if fault.how == "error" and fault.api_key >= FIRST_SHOAL_API_KEY:
            name = ApiKey(fault.api_key).name
            raise UsageError(
                f"{name} cannot fail with an error",
                remedy="close its connection, or lose its answer",
            )
        self._last_number = fault.number
        self.requests[fault.number] = (node_id, fault)
        return {"fault": fault.number}

    def _heal(self) -> None:
        self.ways.clear()
        self.disks.clear()
        self.requests.clear()

    # Reading

    def on_request_hit(self, number: int) -> None:
        """A fault affected a request."""
        if number in self.requests:
            self.requests[number][1].remaining -= 1

    def requests_left(self, number: int) -> int:
        """How many requests a fault will still affect."""
        return self.requests[number][1].remaining if number in self.requests else 0

    def forget(self, node_id: int) -> None:
        """Remove the faults of a removed node."""
        self.ways = {pair: way for pair, way in self.ways.items() if node_id not in pair}
        self.resets = {pair: n for pair, n in self.resets.items() if node_id not in pair}
        self.tasks = {key: n for key, n in self.tasks.items() if key[0] != node_id}
        self.disks.pop(node_id, None)
        self.requests = {n: one for n, one in self.requests.items() if one[0] != node_id}

    def faults_of(self, node_id: int) -> dict[str, Any]:
        """The faults of one node, as they are sent to it."""
        links: dict[int, list[LinkEffect]] = {}
        for (source, target), way in self.ways.items():
            if source == node_id:
                links.setdefault(target, [NO_EFFECT, NO_EFFECT])[0] = way
            elif target == node_id:
                links.setdefault(source, [NO_EFFECT, NO_EFFECT])[1] = way
        return {
            "links": links,
            "resets": {
                sum(pair) - node_id: count for pair, count in self.resets.items() if node_id in pair
            },
            "tasks": {name: count for (node, name), count in self.tasks.items() if node == node_id},
            "disk": self.disks.get(node_id),
            "requests": [
                to_plain(fault) for node, fault in self.requests.values() if node == node_id
            ],
        }

    def describe(self) -> list[dict[str, Any]]:
        """All faults, as JSON."""
        found: list[dict[str, Any]] = [
            {"kind": "link", "source": source, "target": target, **_describe_way(way)}
            for (source, target), way in sorted(self.ways.items())
        ]
        found += [{"kind": "disk", "node": n, **fault} for n, fault in sorted(self.disks.items())]
        found += [
            {"kind": "request", "node": node_id, **to_plain(fault)}
            for node_id, fault in self.requests.values()
            if fault.remaining
        ]
        return found


def _describe_way(way: LinkEffect) -> dict[str, Any]:
    return {"is_cut": way.is_cut, "delay_ms": way.delay_ms, "bytes_per_s": way.bytes_per_s}


def _ends(command: Mapping[str, Any], node_ids: Collection[int]) -> tuple[int, int]:
    source, target = (_require_node(command[end], node_ids) for end in ("source", "target"))
    if source == target:
        raise UsageError(f"a link needs two different nodes, got {source} twice")
    return source, target


def _require_integer(command: Mapping[str, Any], name: str) -> int:
    """An integer: half a millisecond must not silently become 0."""
    value = command[name]
    if int(value) != value:
        raise UsageError(f"{name} must be a whole number, got {value}")
    return int(value)


def _require_node(node_id: Any, node_ids: Collection[int]) -> int:
    if node_id not in node_ids:
        known = ", ".join(map(str, sorted(node_ids)))
        raise UsageError(f"unknown node {node_id!r}", remedy=f"the nodes are {known}")
    known_id: int = node_id
    return known_id
