"""Decides which worker of a mirror copies which partitions; pure.

Rules:
- Partitions are distributed evenly. A partition stays with its worker unless the worker is gone or
  has more than its share.
- A partition has one owner. It is given to another worker only when the old one has confirmed that
  it released it, or when the old one's lease has ended.
- A lost worker has some time to come back before its partitions are given to others.
- Each assignment of partitions has a number; a worker reports the number that it has carried out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.mirror.routes import Route

PATIENCE_S: Final = 5.0


@dataclass(slots=True)
class _Worker:
    epoch: int = 0
    is_live: bool = False
    lost_at: float = 0.0
    assigned: frozenset[Route] = frozenset()
    number: int = 0
    may_hold: set[Route] = field(default_factory=set)


class MirrorShares:
    """Distributes the partitions of one mirror."""

    def __init__(self, workers: Iterable[str]) -> None:
        self._workers = {name: _Worker() for name in workers}
        self._owners: dict[Route, str] = {}

    def update_worker(
        self, name: str, *, epoch: int, is_live: bool, number: int, now: float
    ) -> None:
        """Update the state of a worker: its lease, and the assignment that it has carried out."""
        worker = self._workers[name]
        if worker.is_live and (not is_live or epoch != worker.epoch):
            worker.lost_at = now
            # Its lease has ended: if its process still runs, it is fenced.
            worker.may_hold, worker.assigned = set(), frozenset()
        worker.is_live, worker.epoch = is_live, epoch
        if is_live and number == worker.number:
            worker.may_hold = set(worker.assigned)

    def share(self, routes: Iterable[Route], now: float) -> dict[str, tuple[int, list[Route]]]:
        """Return the new assignments to send: by worker, a number and its partitions."""
        wanted = sorted(set(routes))
        self._settle_owners(wanted, now)
        orders = {}
        for name, worker in self._workers.items():
            if not worker.is_live:
                continue
            others = set().union(
                *(other.may_hold for other in self._workers.values() if other is not worker)
            )
            mine = frozenset(
                route for route in wanted if self._owners[route] == name and route not in others
            )
            if mine != worker.assigned or worker.number == 0:
                worker.assigned = mine
                worker.number += 1
                worker.may_hold |= mine
                orders[name] = (worker.number, sorted(mine))
        return orders

    def _settle_owners(self, wanted: list[Route], now: float) -> None:
        usable = [name for name, worker in self._workers.items() if self._is_usable(worker, now)]
        if not usable:
            usable = list(self._workers)
        known = self._owners
        kept = {route: known[route] for route in wanted if known.get(route) in usable}
        counts: Mapping[str, int] = _counts(usable, kept)
        most = -(-len(wanted) // len(usable))
        loads = dict(counts)
        for route in [route for route, owner in kept.items() if counts[owner] > most]:
            owner = kept[route]
            if loads[owner] > most:
                del kept[route]
                loads[owner] -= 1
        for route in wanted:
            if route not in kept:
                least = min(usable, key=lambda name: (loads[name], name))
                kept[route] = least
                loads[least] += 1
        self._even_out(kept, loads)
        self._owners = kept

    @staticmethod
    def _even_out(kept: dict[Route, str], loads: dict[str, int]) -> None:
        """Move single partitions until no worker has two more than another."""
        while True:
            most = max(loads, key=lambda name: (loads[name], name))
            least = min(loads, key=lambda name: (loads[name], name))
            if loads[most] - loads[least] < 2:
                return
            route = max(route for route, owner in kept.items() if owner == most)
            kept[route] = least
            loads[most] -= 1
            loads[least] += 1

    @staticmethod
    def _is_usable(worker: _Worker, now: float) -> bool:
        return worker.is_live or (worker.epoch > 0 and now - worker.lost_at < PATIENCE_S)


def _counts(names: Iterable[str], owners: Mapping[Route, str]) -> dict[str, int]:
    counts = dict.fromkeys(names, 0)
    for owner in owners.values():
        counts[owner] += 1
    return counts
