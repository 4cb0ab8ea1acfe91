"""Zones: which endpoints are close to each other, and the latency between zones. Pure.

    [[zone]]
    name = "a"
    members = ["source/1", "producers"]
    latency = { b = "20ms", c = "40ms" }

Rules of this file:
- A member is a cluster, a node of a cluster (`source/1`), a role (`producers`, `consumers`,
  `mirror`), or a worker or group by its name. The most specific entry wins: a node's before its
  cluster's, a worker's before its role's.
- Latency is one-way, and the same in both directions unless both zones set it. Without an entry
  the latency between two zones is zero.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.model.tables import Table
from shoal.net.link_faults import EndpointNames, LinkEffect

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Zones:
    """The zones of an experiment."""

    names: tuple[str, ...] = ()
    zone_of: Mapping[str, str] = field(default_factory=dict)  # by member
    latency_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names)

    def with_zone(self, *names: str) -> EndpointNames:
        """These names of an endpoint, the most specific first, and the name of its zone."""
        zone = next((self.zone_of[name] for name in names if name in self.zone_of), None)
        return frozenset(names) if zone is None else frozenset((*names, f"zone/{zone}"))

    def effects(self) -> Iterable[tuple[str, str, LinkEffect]]:
        """The delay between each two zones, as (source, target, effect)."""
        for (source, target), delay_ms in self.latency_ms.items():
            if delay_ms > 0:
                yield f"zone/{source}", f"zone/{target}", LinkEffect(delay_ms=delay_ms)


def parse(tables: Iterable[Table], members: Mapping[str, str] | None = None) -> Zones:
    """Parse the `[[zone]]` tables; `members` maps members to racks, which may name zones."""
    listed = list(tables)
    names: list[str] = []
    zone_of: dict[str, str] = {}
    declared: dict[tuple[str, str], float] = {}
    latencies: list[tuple[str, Table]] = []
    for table in listed:
        name = table.text("name")
        if not _NAME.fullmatch(name) or name in names:
            raise table.error(
                "name", f"is {name!r:.60}: it must be unique, of letters, digits and . _ -"
            )
        names.append(name)
        for member in table.texts("members"):
            if member in zone_of:
                raise table.error(
                    "members", f"contains {member}, which is already in zone {zone_of[member]}"
                )
            zone_of[member] = name
        latencies.append((name, table.table("latency")))
        table.refuse_unknown_keys()
    for name, latency in latencies:
        for other in names:
            if other in latency:
                declared[name, other] = latency.seconds(other) * 1000
        for other in names:
            latency.seconds(other, 0.0)  # marks the key as known: any other key is not a zone
        latency.refuse_unknown_keys()
    both_ways = {(target, source): delay for (source, target), delay in declared.items()} | declared
    by_rack = {member: rack for member, rack in (members or {}).items() if rack in names}
    return Zones(tuple(names), by_rack | zone_of, both_ways)
