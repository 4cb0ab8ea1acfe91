"""Zones: who is near whom, and how far it is to the others (pure).

    [[zone]]
    name = "a"
    members = ["source/1", "producers"]
    latency = { b = "20ms", c = "40ms" }

Rules of this file:
- A member is a cluster, a node of one (`source/1`), a role (`producers`, `consumers`,
  `mirror`), or one worker or group by its name. The nearest word wins: a node's own entry is
  before its cluster's, a worker's before its role's.
- Latency is one way, and the same both ways unless both zones say it. Zones that say nothing
  about each other are as near as can be.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.model.tables import Table
from shoal.net.ways import Effect, Names

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Zones:
    """The zones of an experiment."""

    names: tuple[str, ...] = ()
    zone_of: Mapping[str, str] = field(default_factory=dict)  # by member
    latency_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names)

    def named(self, *names: str) -> Names:
        """All names of whoever goes by these, nearest first: its zone is one of them."""
        zone = next((self.zone_of[name] for name in names if name in self.zone_of), None)
        return frozenset(names) if zone is None else frozenset((*names, f"zone/{zone}"))

    def effects(self) -> Iterable[tuple[str, str, Effect]]:
        """What the distances between zones do, one direction after the other."""
        for (source, target), delay_ms in self.latency_ms.items():
            if delay_ms > 0:
                yield f"zone/{source}", f"zone/{target}", Effect(delay_ms=delay_ms)


def parse(tables: Iterable[Table], members: Mapping[str, str] | None = None) -> Zones:
    """The `[[zone]]` tables; `members` are those whose zones follow from their racks."""
    listed = list(tables)
    names: list[str] = []
    zone_of: dict[str, str] = {}
    said: dict[tuple[str, str], float] = {}
    latencies: list[tuple[str, Table]] = []
    for table in listed:
        name = table.text("name")
        if not _NAME.fullmatch(name) or name in names:
            raise table.wrong("name", f"is {name!r:.60}: it must be plain, and another for each")
        names.append(name)
        for member in table.texts("members"):
            if member in zone_of:
                raise table.wrong("members", f"has {member}, which is in {zone_of[member]} too")
            zone_of[member] = name
        latencies.append((name, table.table("latency")))
        table.done()
    for name, latency in latencies:
        for other in names:
            if other in latency:
                said[name, other] = latency.seconds(other) * 1000
        for other in names:
            latency.seconds(other, 0.0)  # known: what is left is no zone
        latency.done()
    both_ways = {(target, source): delay for (source, target), delay in said.items()} | said
    by_rack = {member: rack for member, rack in (members or {}).items() if rack in names}
    return Zones(tuple(names), by_rack | zone_of, both_ways)
