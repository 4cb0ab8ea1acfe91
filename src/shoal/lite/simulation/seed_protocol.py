"""A protocol that does not work, kept because the simulation must find its holes.

It is the first idea that one has, and the one from which Kafka Lite grew:

    write      the leader asks its peers who leads, appends, copies to all peers that it takes
               for alive, one after the other, and acknowledges when they have it
    elect      a broker that misses the leader asks those it can reach; the longest log wins, then
               who leads fewest partitions, then the smallest id; a majority of those asked agrees
    catch up   a broker that returns asks the leader for the length of its log, and for the rest

It has three holes: logs part for good (LogMatching), what was acknowledged is gone
(NoCommittedRecordLost), and two lead at once and both acknowledge (SingleLeader). The model is
atomic where the real thing is not, so real holes are larger.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from shoal.lite.simulation.errors import Violation
from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.setup import Step

BROKERS = (1, 2, 3)
HOLES = ("LogMatching", "NoCommittedRecordLost", "SingleLeader")
_VERBS = {
    "write": 12,
    "copy": 24,
    "elect": 6,
    "kill": 1.5,
    "restart": 4,
    "cut": 1,
    "heal": 3,
}


def seed_steps(seed: int, count: int) -> tuple[Step, ...]:
    """What happens in a history of this protocol."""
    random = Random(seed)
    verbs = random.choices(list(_VERBS), list(_VERBS.values()), k=count)
    return tuple(
        Step(place, verb, random.getrandbits(32)) for place, verb in enumerate(verbs, start=1)
    )


@dataclass(slots=True)
class _Broker:
    log: list[int] = field(default_factory=list)
    is_alive: bool = True
    leader: int = BROKERS[0]


@dataclass(slots=True)
class _Write:
    """A write that is under way: who still has to get it."""

    value: int
    place: int
    missing: list[int]


class SeedCluster:
    """One partition on three brokers."""

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        invariants: Sequence[str] = HOLES,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._steps = steps
        self._invariants = invariants
        self._trace = trace
        self._random = Random()
        self._brokers = {broker_id: _Broker() for broker_id in BROKERS}
        self._cut_off: set[int] = set()
        self._writes: dict[int, _Write] = {}
        self._values = 0
        # By place in the log: what was acknowledged there, and by whom.
        self._acknowledged: dict[int, tuple[int, int]] = {}
        self._counters: Counter[str] = Counter()
        self._verbs: dict[str, Callable[[], None]] = {
            "write": self._write,
            "copy": self._copy,
            "elect": self._elect,
            "kill": self._kill,
            "restart": self._restart,
            "cut": self._isolate_broker,
            "heal": self._heal,
        }

    def play(self, seed: int) -> HistoryOutcome:
        """Take all steps, until an invariant does not hold."""
        for taken, step in enumerate(self._steps, start=1):
            self._random = Random(step.salt)
            self._counters[step.verb] += 1
            try:
                self._verbs[step.verb]()
                self._check()
            except Violation as violation:
                return HistoryOutcome(seed, taken, self._counters, violation, taken)
        return HistoryOutcome(seed, len(self._steps), self._counters, None, len(self._steps))

    def _trace_step(self, what: str) -> None:
        if self._trace is not None:
            logs = "; ".join(
                f"{i}{'' if b.is_alive else ' (dead)'}: {b.log}" for i, b in self._brokers.items()
            )
            self._trace(f"{what:58s} {logs}")

    # Who sees whom

    def _alive(self) -> list[int]:
        return [broker_id for broker_id, broker in self._brokers.items() if broker.is_alive]

    def _reachable(self, broker_id: int) -> list[int]:
        """Those alive on the same side of a cut, with the one who asks."""
        is_cut_off = broker_id in self._cut_off
        return [
            other
            for other in self._alive()
            if other == broker_id or (other in self._cut_off) == is_cut_off
        ]

    def _leaders(self) -> list[int]:
        return [
            broker_id for broker_id in self._alive() if self._brokers[broker_id].leader == broker_id
        ]

    def _any(self, broker_ids: Sequence[int]) -> int | None:
        return self._random.choice(list(broker_ids)) if broker_ids else None

    # Writing

    def _write(self) -> None:
        leader_id = self._any([i for i in self._leaders() if i not in self._writes])
        if leader_id is None:
            return
        peers = [i for i in self._reachable(leader_id) if i != leader_id]
        agreeing = [i for i in peers if self._brokers[i].leader == leader_id]
        if len(agreeing) * 2 < len(peers):
            return
        self._values += 1
        log = self._brokers[leader_id].log
        self._writes[leader_id] = _Write(self._values, len(log), peers)
        log.append(self._values)
        self._trace_step(f"{leader_id} appends {self._values}")
        self._acknowledge_if_done(leader_id)

    def _copy(self) -> None:
        leader_id = self._any([i for i in self._writes if self._brokers[i].is_alive])
        if leader_id is None:
            return
        write = self._writes[leader_id]
        peer = write.missing.pop(0)
        # A broker that caught up in the meantime has it already.
        if peer in self._reachable(leader_id) and write.value not in self._brokers[peer].log:
            self._brokers[peer].log.append(write.value)
            self._trace_step(f"{leader_id} copies {write.value} to {peer}")
        self._acknowledge_if_done(leader_id)

    def _acknowledge_if_done(self, leader_id: int) -> None:
        write = self._writes[leader_id]
        if write.missing:
            return
        del self._writes[leader_id]
        self._trace_step(f"{leader_id} acknowledges {write.value}")
        self._counters["acknowledged"] += 1
        known = self._acknowledged.get(write.place)
        if known is not None and known[1] != leader_id and len(self._leaders()) > 1:
            self._report_violation(
                "SingleLeader", f"{known[1]} and {leader_id} acknowledged a record each"
            )
        self._acknowledged.setdefault(write.place, (write.value, leader_id))

    # Electing

    def _elect(self) -> None:
        asking = self._any(
            [i for i in self._alive() if self._brokers[i].leader not in self._reachable(i)]
        )
        if asking is None:
            return
        voters = self._reachable(asking)
        winner = min(voters, key=lambda i: (-len(self._brokers[i].log), i))
        for voter in voters:
            self._brokers[voter].leader = winner
        self._counters["elections"] += 1
        self._trace_step(f"{winner} is elected by {voters}")

    # Faults

    def _kill(self) -> None:
        broker_id = self._any(self._alive())
        if broker_id is not None and len(self._alive()) > 1:
            self._brokers[broker_id].is_alive = False
            self._writes.pop(broker_id, None)
            self._trace_step(f"{broker_id} is killed")

    def _restart(self) -> None:
        broker_id = self._any([i for i in BROKERS if not self._brokers[i].is_alive])
        if broker_id is not None:
            self._brokers[broker_id].is_alive = True
            self._counters["restarts"] += 1
            self._catch_up(broker_id)

    def _isolate_broker(self) -> None:
        if not self._cut_off:
            self._cut_off = {self._random.choice(BROKERS)}
            self._trace_step(f"{self._cut_off} is cut off")

    def _heal(self) -> None:
        returning, self._cut_off = self._cut_off, set()
        for broker_id in returning:
            if self._brokers[broker_id].is_alive:
                self._catch_up(broker_id)

    def _catch_up(self, broker_id: int) -> None:
        """Ask the others who leads, and for as many records as are missing."""
        broker = self._brokers[broker_id]
        others = [i for i in self._reachable(broker_id) if i != broker_id]
        known = Counter(self._brokers[i].leader for i in others).most_common(1)
        broker.leader = known[0][0] if known else broker_id
        leader = self._brokers[broker.leader]
        if leader.is_alive and broker.leader in others:
            broker.log += leader.log[len(broker.log) :]
        self._trace_step(f"{broker_id} returns, follows {broker.leader}")

    # Judging

    def _check(self) -> None:
        leaders = self._leaders()
        if len(leaders) != 1 or self._cut_off or self._writes:
            return
        leader = self._brokers[leaders[0]]
        followers = [self._brokers[i] for i in self._alive() if self._brokers[i] is not leader]
        if any(follower.leader != leaders[0] for follower in followers):
            return
        for place, (value, _) in self._acknowledged.items():
            if leader.log[place : place + 1] != [value]:
                detail = f"{value} was acknowledged, and {leaders[0]} leads without it"
                self._report_violation("NoCommittedRecordLost", detail)
        for follower in followers:
            shared = min(len(leader.log), len(follower.log))
            if leader.log[:shared] != follower.log[:shared]:
                self._report_violation("LogMatching", f"{leader.log} and {follower.log}")

    def _report_violation(self, invariant: str, detail: str) -> None:
        if invariant in self._invariants:
            raise Violation(invariant, detail)


def play_seed_protocol(
    seed: int,
    steps: Sequence[Step],
    *,
    invariants: Sequence[str] = HOLES,
    trace: Callable[[str], None] | None = None,
) -> HistoryOutcome:
    return SeedCluster(steps, invariants=invariants, trace=trace).play(seed)
