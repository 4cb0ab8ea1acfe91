"""All faults of a cluster, as its supervisor keeps them; each node is told its part.

Faults outlive the processes that they harm: a node that is restarted is told again, until the
fault is healed. Pure: values in, values out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.lite.base.hooks.links import FREE, Way
from shoal.lite.base.hooks.request_faults import RequestFault
from shoal.lite.storage.disk import DiskFault
from shoal.model.errors import ShoalError, UsageError
from shoal.model.serialised import arguments_of, to_plain
from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code

_HOWS = ("error", "hang-up", "lost-answer")
# Nobody but their own files can make answers of these APIs.
FIRST_OF_OURS = 10_000
_MOST_TIMES = 1_000_000_000
_LONGEST_DELAY_MS = 3_600_000
_MOST_BYTES_PER_S = 1_000_000_000_000


@dataclass(slots=True)
class FaultPlan:
    """What is wrong at present."""

    # By the node that sends and the node that receives.
    ways: dict[tuple[int, int], Way] = field(default_factory=dict)
    # How often links were reset: nothing lasts, so nothing is healed.
    resets: dict[tuple[int, int], int] = field(default_factory=dict)
    # How often background tasks were asked to fail, by node and name: nothing lasts here either.
    tasks: dict[tuple[int, str], int] = field(default_factory=dict)
    disks: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: dict[int, tuple[int, RequestFault]] = field(default_factory=dict)
    _last_number: int = 0

    # Planting

    def plant(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        """Do what a command asks for; returns what is told about it. `UsageError` if it cannot."""
        kind = wish.get("kind")
        try:
            if kind == "link":
                return self._link(wish, node_ids)
            if kind == "reset":
                return self._reset(wish, node_ids)
            if kind == "task":
                return self._task(wish, node_ids)
            if kind == "isolate":
                return self._isolate(wish, node_ids)
            if kind == "disk":
                return self._disk(wish, node_ids)
            if kind == "request":
                return self._request(wish, node_ids)
            if kind == "heal":
                self._heal()
                return {}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"that is no fault: {error!r}") from error
        raise UsageError(f"there is no fault {kind!r}")

    def _link(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        source, target = _ends(wish, node_ids)
        way = Way(bool(wish["is_cut"]), _whole(wish, "delay_ms"), _whole(wish, "bytes_per_s"))
        if not 0 <= way.delay_ms <= _LONGEST_DELAY_MS:
            raise UsageError(f"{way.delay_ms} ms is no delay", remedy="0 to an hour")
        if not 0 <= way.bytes_per_s <= _MOST_BYTES_PER_S:
            raise UsageError(
                f"{way.bytes_per_s} bytes per second is no width", remedy="1 or more; 0: no limit"
            )
        pairs = [(source, target)] if wish["one_way"] else [(source, target), (target, source)]
        for pair in pairs:
            if way == FREE:
                self.ways.pop(pair, None)
            else:
                self.ways[pair] = way
        return {}

    def _reset(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        source, target = _ends(wish, node_ids)
        pair = min(source, target), max(source, target)
        self.resets[pair] = self.resets.get(pair, 0) + 1
        return {}

    def _task(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        key = _known(wish["node"], node_ids), str(wish["task"])
        self.tasks[key] = self.tasks.get(key, 0) + 1
        return {}

    def _isolate(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _known(wish["node"], node_ids)
        for other in set(node_ids) - {node_id}:
            self.ways[node_id, other] = self.ways[other, node_id] = Way(is_cut=True)
        return {}

    def _disk(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _known(wish["node"], node_ids)
        fault = wish["fault"]
        if fault is None:
            self.disks.pop(node_id, None)
            return {}
        try:
            DiskFault(**arguments_of(DiskFault, fault))
        except ShoalError as error:
            raise UsageError(str(error), remedy=error.remedy) from error
        self.disks[node_id] = dict(fault)
        return {}

    def _request(self, wish: Mapping[str, Any], node_ids: Collection[int]) -> dict[str, Any]:
        node_id = _known(wish["node"], node_ids)
        fault = RequestFault(
            self._last_number + 1,
            int(wish["api_key"]),
            _whole(wish, "times"),
            wish["how"],
            int(wish["error_code"]),
            wish["client_id"],
        )
        if fault.how not in _HOWS:
            raise UsageError(f"a request cannot fail by {fault.how!r}", remedy=", ".join(_HOWS))
        if not 1 <= fault.left <= _MOST_TIMES:
            raise UsageError(f"a request cannot fail {fault.left} times")
        if fault.api_key not in set(ApiKey):
            raise UsageError(f"there is no API {fault.api_key}")
        if fault.how == "error" and (fault.error_code == 0 or fault.error_code not in set(Code)):
            raise UsageError(f"{fault.error_code} is no error code of Kafka")
        if fault.how == "error" and fault.api_key >= FIRST_OF_OURS:
            name = ApiKey(fault.api_key).name
            raise UsageError(
                f"{name} cannot fail with an error", remedy="hang up, or lose its answer"
            )
        self._last_number = fault.number
        self.requests[fault.number] = (node_id, fault)
        return {"fault": fault.number}

    def _heal(self) -> None:
        self.ways.clear()
        self.disks.clear()
        self.requests.clear()

    # What follows

    def hit(self, number: int) -> None:
        """A request met a fault."""
        if number in self.requests:
            self.requests[number][1].left -= 1

    def left(self, number: int) -> int:
        """How many requests a fault will still meet."""
        return self.requests[number][1].left if number in self.requests else 0

    def forget(self, node_id: int) -> None:
        """A node is gone for good."""
        self.ways = {pair: way for pair, way in self.ways.items() if node_id not in pair}
        self.resets = {pair: n for pair, n in self.resets.items() if node_id not in pair}
        self.tasks = {key: n for key, n in self.tasks.items() if key[0] != node_id}
        self.disks.pop(node_id, None)
        self.requests = {n: one for n, one in self.requests.items() if one[0] != node_id}

    def part_of(self, node_id: int) -> dict[str, Any]:
        """What a node has to be told."""
        links: dict[int, list[Way]] = {}
        for (source, target), way in self.ways.items():
            if source == node_id:
                links.setdefault(target, [FREE, FREE])[0] = way
            elif target == node_id:
                links.setdefault(source, [FREE, FREE])[1] = way
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

    def described(self) -> list[dict[str, Any]]:
        """All faults, for whoever looks."""
        found: list[dict[str, Any]] = [
            {"kind": "link", "source": source, "target": target, **_describe_way(way)}
            for (source, target), way in sorted(self.ways.items())
        ]
        found += [{"kind": "disk", "node": n, **fault} for n, fault in sorted(self.disks.items())]
        found += [
            {"kind": "request", "node": node_id, **to_plain(fault)}
            for node_id, fault in self.requests.values()
            if fault.left
        ]
        return found


def _describe_way(way: Way) -> dict[str, Any]:
    return {"is_cut": way.is_cut, "delay_ms": way.delay_ms, "bytes_per_s": way.bytes_per_s}


def _ends(wish: Mapping[str, Any], node_ids: Collection[int]) -> tuple[int, int]:
    source, target = (_known(wish[end], node_ids) for end in ("source", "target"))
    if source == target:
        raise UsageError(f"a link has two ends, and both are {source}")
    return source, target


def _whole(wish: Mapping[str, Any], name: str) -> int:
    """A whole number: half a millisecond must not quietly become none."""
    value = wish[name]
    if int(value) != value:
        raise UsageError(f"{name} is {value}, and has to be a whole number")
    return int(value)


def _known(node_id: Any, node_ids: Collection[int]) -> int:
    if node_id not in node_ids:
        known = ", ".join(map(str, sorted(node_ids)))
        raise UsageError(f"there is no node {node_id!r}", remedy=f"there is {known}")
    known_id: int = node_id
    return known_id
