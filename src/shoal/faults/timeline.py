"""When each fault begins and ends, from the `[[fault]]` sections of an experiment. Pure.

Rules of this file:
- Times count from the start of the producers. A fault begins `at` a time, or `every` so often
  from there on, or at a number of `random` times up to `until`; it lasts `for` a time, or to the
  end of the run.
- Random numbers come from the fault's `seed` and its position in the file: the same file gives
  the same times and, for `any` and `random` targets, the same choices.
- The name of a fault determines its keys; any other key is refused.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.model.errors import ConfigError
from shoal.model.tables import Table
from shoal.net.link_faults import NO_EFFECT, LinkEffect

MOST_FAULTS: Final = 1000
MOST_RANDOM: Final = 10_000

NODE_FAULTS: Final = ("kill", "pause", "restart", "rolling_restart")
LINK_FAULTS: Final = ("cut", "delay", "stall", "bandwidth", "reset")
TOPIC_FAULTS: Final = ("recreate_topic", "grow", "purge")
NAMES: Final = (*NODE_FAULTS, *LINK_FAULTS, "heal", *TOPIC_FAULTS)
# Faults without a duration: they refuse `for`.
_AT_ONCE: Final = frozenset({"restart", "rolling_restart", "reset", "heal", *TOPIC_FAULTS})
_LINK_KEYS: Final = frozenset({"between", "from", "to"})
_OWN_KEYS: Final[dict[str, frozenset[str]]] = {
    "kill": frozenset({"target"}),
    "pause": frozenset({"target"}),
    "restart": frozenset({"target"}),
    "rolling_restart": frozenset({"target", "rest"}),
    "cut": _LINK_KEYS,
    "stall": _LINK_KEYS,
    "reset": _LINK_KEYS,
    "heal": frozenset[str](),
    "delay": _LINK_KEYS | {"delay"},
    "bandwidth": _LINK_KEYS | {"bandwidth"},
    "recreate_topic": frozenset({"target", "topic"}),
    "grow": frozenset({"target", "topic", "partitions"}),
    "purge": frozenset({"target", "topic", "keep"}),
}
_ALL_OWN_KEYS: Final = frozenset().union(*_OWN_KEYS.values())


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """The times at which a fault begins, in seconds from the start."""

    at_s: float
    every_s: float | None = None
    until_s: float | None = None
    random_times: int = 0
    seed: int = 0

    def start_times_s(self, place: int) -> Iterator[float]:
        """In order; endless for a fault with `every` and without `until`."""
        if self.random_times:
            generator = _random(self.seed, place)
            end_s = self.at_s if self.until_s is None else self.until_s
            yield from sorted(generator.uniform(self.at_s, end_s) for _ in range(self.random_times))
            return
        start_s, step_s = self.at_s, self.every_s
        while self.until_s is None or start_s <= self.until_s:
            yield start_s
            if step_s is None:
                return
            start_s += step_s


@dataclass(frozen=True, slots=True)
class Fault:
    """One `[[fault]]`: what, to which target, when."""

    name: str
    when: FaultSchedule
    target: str = ""
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    is_one_way: bool = False
    lasts_s: float | None = None
    effect: LinkEffect = NO_EFFECT
    topic: str = ""
    partitions: int = 0
    keep: int = 0
    rest_s: float = 0.0
    site: str = field(default="", compare=False)  # file and line

    @property
    def title(self) -> str:
        """The beginning of an error message about this fault."""
        return f"{self.site}: the fault {self.name}" if self.site else f"the fault {self.name}"

    @property
    def described_target(self) -> str:
        """The target in one string."""
        if self.name not in LINK_FAULTS:
            return self.target
        arrow = "->" if self.is_one_way else "<->"
        return f"{','.join(self.sources)}{arrow}{','.join(self.targets)}"

    def detail(self) -> dict[str, Any]:
        """The settings of the fault, for its line in the commit log."""
        settings: dict[str, Any] = {
            "for_s": self.lasts_s,
            "delay_ms": self.effect.delay_ms or None,
            "bytes_per_s": self.effect.bytes_per_s or None,
            "topic": self.topic or None,
            "partitions": self.partitions or None,
            "keep": self.keep or None,
        }
        return {key: value for key, value in settings.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One start of a fault."""

    at_s: float
    fault: Fault
    choice_seed: int  # for the choice of a random target


@dataclass(frozen=True, slots=True)
class Timeline:
    """All faults of an experiment."""

    faults: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.faults)

    def occurrences(self, until_s: float | None = None) -> Iterator[Occurrence]:
        """The starts before `until_s`, in order of time."""
        streams = [_occurrences(place, fault) for place, fault in enumerate(self.faults)]
        for occurrence in heapq.merge(*streams, key=lambda one: one.at_s):
            if until_s is not None and occurrence.at_s >= until_s:
                return
            yield occurrence

    def names(self) -> frozenset[str]:
        return frozenset(fault.name for fault in self.faults)

    def places(self) -> frozenset[str]:
        """Every target that a fault names: nodes, processes and ends of links."""
        return frozenset(
            place
            for fault in self.faults
            for place in ((fault.target,) if fault.target else (*fault.sources, *fault.targets))
        )

    @property
    def touches_links(self) -> bool:
        return bool(self.names() & {*LINK_FAULTS})


def parse(tables: Iterable[Table]) -> Timeline:
    """Parse the `[[fault]]` tables of an experiment; a `ConfigError` names the wrong key."""
    listed = list(tables)
    if len(listed) > MOST_FAULTS:
        raise ConfigError(f"an experiment has at most {MOST_FAULTS} [[fault]] sections")
    return Timeline(tuple(map(_fault, listed)))


def _fault(table: Table) -> Fault:
    name = table.text("name", choices=NAMES)
    when = _when(table)
    lasts_s = table.seconds("for", 0.0) if "for" in table else None
    if "for" not in table:
        table.seconds("for", 0.0)  # marks the key as known, for hints about misspelt keys
    if lasts_s is not None and name in _AT_ONCE:
        raise table.error("for", f"is not a key of {name}, which has no duration")
    for key in sorted(_ALL_OWN_KEYS - _OWN_KEYS[name]):
        if key in table:
            raise table.error(key, f"is not a key of {name}", remedy="remove it")
    fault = Fault(name=name, when=when, lasts_s=lasts_s, site=table.site(), **_own(table, name))
    table.refuse_unknown_keys()
    return fault


def _when(table: Table) -> FaultSchedule:
    has_every, has_random = "every" in table, "random" in table
    every_s = table.seconds("every", 0.0)
    times = table.count("random", 0, least=1 if has_random else 0)
    until_s = table.seconds("until", 0.0) if "until" in table else None
    if "until" not in table:
        table.seconds("until", 0.0)
    at_s = table.seconds("at", every_s if has_every or has_random else None)
    if has_every and every_s <= 0:
        raise table.error("every", "must be above 0")
    if has_every and has_random:
        raise table.error("random", "and every exclude each other", remedy="remove one of them")
    if has_random and until_s is None:
        raise table.error("until", "is missing", remedy='random needs it, e.g. until = "60s"')
    if times > MOST_RANDOM:
        raise table.error("random", f"is {times}, above the limit of {MOST_RANDOM}")
    if until_s is not None and until_s < at_s:
        raise table.error("until", "is before the first start")
    return FaultSchedule(
        at_s=at_s,
        every_s=every_s if has_every else None,
        until_s=until_s,
        random_times=times,
        seed=table.count("seed", 0),
    )


def _own(table: Table, name: str) -> dict[str, Any]:
    """The fields that only some faults have."""
    if name in LINK_FAULTS:
        return _link(table) | {"effect": _effect(table, name)}
    if name == "heal":
        return {"target": "links"}
    own: dict[str, Any] = {"target": table.text("target")}
    if not own["target"]:
        raise table.error("target", "is empty", remedy='e.g. target = "source/1"')
    if name in TOPIC_FAULTS:
        own["topic"] = table.text("topic", "")
    if name == "grow":
        own["partitions"] = table.count("partitions", least=1)
    if name == "purge":
        own["keep"] = table.count("keep", 0)
    if name == "rolling_restart":
        own["rest_s"] = table.seconds("rest", 0.0)
    return own


def _link(table: Table) -> dict[str, Any]:
    has_both = "between" in table
    between = table.texts("between")
    sources, targets = table.texts("from"), table.texts("to")
    if has_both == bool(sources or targets):
        raise table.error(
            "between",
            "or from and to must be given, not both",
            remedy='e.g. between = ["zone/a", "zone/b"], or from = "mirror" and to = "target"',
        )
    if has_both and len(between) != 2:
        raise table.error(
            "between",
            f"has {len(between)} entries, but a link has two ends",
            remedy='e.g. between = ["producers", "source"]',
        )
    if not has_both and not (sources and targets):
        raise table.error("to" if sources else "from", "is missing: a link has two ends")
    if has_both:
        sources, targets = between[:1], between[1:]
    return {"sources": sources, "targets": targets, "is_one_way": not has_both}


def _effect(table: Table, name: str) -> LinkEffect:
    if name == "delay":
        return LinkEffect(delay_ms=_positive(table, "delay", table.seconds("delay")) * 1000)
    if name == "bandwidth":
        rate = table.quantity("bandwidth_bytes", int)
        if rate is None:
            raise table.error(
                "bandwidth", "is missing", remedy='bytes per second: bandwidth = "1MB"'
            )
        return LinkEffect(bytes_per_s=_positive(table, "bandwidth", float(rate)))
    return LinkEffect(is_cut=name == "cut", is_stalled=name == "stall")


def _positive(table: Table, key: str, value: float) -> float:
    if value <= 0:
        raise table.error(key, "must be above 0")
    return value


def _occurrences(place: int, fault: Fault) -> Iterator[Occurrence]:
    for count, start_s in enumerate(fault.when.start_times_s(place)):
        choice_seed = _random(fault.when.seed, place, count).getrandbits(32)
        yield Occurrence(start_s, fault, choice_seed)


def _random(*parts: int) -> random.Random:
    return random.Random("/".join(map(str, parts)))  # noqa: S311 - reproducible, not secret
