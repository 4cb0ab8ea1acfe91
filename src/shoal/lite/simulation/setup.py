"""What a history is made of: the cluster, the weather, and the steps that someone takes.

All of it follows from the seed. A step carries a number from which its details are drawn when
its time comes, so steps do not depend on each other, and a history can be played again with
some of them left out: that is how a failure is shortened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import NamedTuple

from shoal.lite.metadata.rules.controller import ControllerSettings
from shoal.lite.raft.config import RaftConfig
from shoal.lite.replication.messages import ReplicationSettings


class CrashModel(Enum):
    """What a node loses when it ends."""

    # Its process is killed: everything that was written is there.
    PROCESS = "process"
    # The power goes: what was not synced may be gone. Processes are killed too.
    POWER = "power"


class Focus(Enum):
    """What a history is about: a thousand steps are few for everything at once."""

    BROKERS = "brokers"
    EVERYTHING = "everything"
    QUORUM = "quorum"


@dataclass(frozen=True, slots=True)
class Weather:
    """How the network treats messages. Probabilities are per message."""

    loss: float
    duplication: float
    # How long a message takes, and how likely it is to be late and overtaken by others.
    delay_ms: int
    lateness: float
    late_ms: int


CALM = Weather(loss=0, duplication=0, delay_ms=5, lateness=0, late_ms=1)

# Small enough for many fail-overs in a thousand steps; in the proportions of the defaults.
RAFT = RaftConfig(
    election_timeout_ms=150,
    fetch_timeout_ms=600,
    fetch_max_wait_ms=250,
    request_timeout_ms=400,
    retry_backoff_ms=30,
    fetch_max_bytes=1500,
    snapshot_chunk_bytes=2500,
)
# With elections that end and begin while votes are on their way.
HASTY_RAFT = replace(
    RAFT,
    election_timeout_ms=90,
    fetch_timeout_ms=260,
    fetch_max_wait_ms=110,
    request_timeout_ms=180,
)
CONTROLLER = ControllerSettings(
    session_timeout_ms=700, balance_delay_ms=250, recovery_timeout_ms=400
)
HEARTBEAT_MS = 180
FETCH_MAX_WAIT_MS = 250
REQUEST_TIMEOUT_MS = 400


def replication_settings(min_insync: int) -> ReplicationSettings:
    return ReplicationSettings(
        min_insync_replicas=min_insync,
        replica_lag_time_max_ms=500,
        controller_request_timeout_ms=REQUEST_TIMEOUT_MS,
        controller_retry_backoff_ms=30,
        replica_fetch_backoff_ms=40,
    )


class Step(NamedTuple):
    """Something that is done to the cluster or asked of it, at a time after its start."""

    at_ms: int
    verb: str
    salt: int


@dataclass(frozen=True, slots=True)
class Setup:
    """A cluster in its weather."""

    seed: int
    crash: CrashModel
    focus: Focus
    controllers: int
    brokers: int
    partitions: int
    replication_factor: int
    min_insync: int
    # Whether replicas without everything may lead when no other can.
    is_unclean: bool
    # Of each producer: its acks, and whether it is idempotent.
    producers: tuple[tuple[int, bool], ...]
    weather: Weather
    # How much faster or slower clocks may run than time does.
    drift: float
    raft: RaftConfig
    # Controllers that have no vote at first.
    observers: int = 0

    @property
    def is_embedded(self) -> bool:
        """Whether the only controller sees processes end."""
        return self.controllers == 1 and not self.observers


# How often each step is taken, in relation to the others, in one history and another.
_CLIENTS: Mapping[str, float] = {"send": 60, "read": 14, "ask-end": 6}
_CARE: Mapping[str, float] = {
    "write-down": 3,
    "flush": 1,
    "delete-records": 1,
    "move-leader": 2,
    "prefer-leaders": 0.5,
    "change-settings": 0.3,
    "shrink-in-sync": 1,
    "reassign": 1,
    "join": 0.7,
    "snapshot": 2,
}
_BROKER_FAULTS: Mapping[str, float] = {
    "kill-broker": 3,
    "kill-leader": 3,
    "kill-writing-broker": 4,
    "kill-all-brokers": 0.4,
    "kill-everything": 0.2,
    "fail-log": 0.7,
    "stop-broker": 1.5,
    "pause-broker": 3,
    "pause-leader": 1.5,
    "cut-broker": 4,
    "cut-link": 4,
}
_CONTROLLER_FAULTS: Mapping[str, float] = {
    "kill-controller": 2,
    "kill-active-controller": 2,
    "kill-writing-controller": 3,
    "kill-all-controllers": 0.4,
    "pause-active-controller": 2,
    "cut-controller": 3,
    "resign-controller": 2,
    "alarm-controller": 2,
}
# Does something only in the middle of an election with two candidates.
_ELECTION_FAULTS: Mapping[str, float] = {
    "bounce-voter": 200,
    "kill-active-controller": 8,
    "resign-controller": 8,
}
_POWER_FAULTS: Mapping[str, float] = {
    "power-broker": 2,
    "power-leader": 1.5,
    "power-some": 0.3,
    "power-everything": 0.1,
    "lose-disk": 0.5,
    "cut-log": 1,
    # Does something only where the copy of a folder is out of date.
    "restore-copy": 4,
}
_STEPS_PER_S = 26
# Long enough for any number of events that a history of some thousand steps has.
_HORIZON_MS = 120_000


def make_setup(seed: int, crash: CrashModel | None = None) -> Setup:
    """The cluster of a seed. Without a crash model the seed decides on it too."""
    random = Random(seed)
    own_crash = random.choice([CrashModel.PROCESS, CrashModel.POWER])
    focus = random.choices(list(Focus), [5, 4, 3])[0]
    is_quorum = focus is Focus.QUORUM
    brokers = random.choices([1, 2, 3, 4, 5], [9, 3, 0, 0, 0] if is_quorum else [1, 3, 12, 3, 3])[0]
    replication_factor = min(brokers, random.choices([1, 2, 3, 4, 5], [1, 3, 12, 2, 2])[0])
    producers = [(-1, True)]
    producers += random.choices([(-1, True), (-1, False), (1, False), (0, False)], k=2)
    rough = random.choice([0.0, 0.3, 1.0, 2.0])
    return Setup(
        seed=seed,
        crash=crash or own_crash,
        focus=focus,
        controllers=random.choices([1, 3, 5], [0, 4, 1] if is_quorum else [3, 8, 1])[0],
        brokers=brokers,
        partitions=random.choice([1, 1, 2, 3]),
        replication_factor=replication_factor,
        # `available`, `default` and `strict`.
        min_insync=random.choice([1, min(2, replication_factor), replication_factor]),
        is_unclean=random.random() < 0.08,
        producers=tuple(producers),
        weather=Weather(
            loss=0.02 * rough,
            duplication=0.03 * rough,
            delay_ms=random.choice([4, 15, 40, 70]),
            lateness=0.02 * rough,
            late_ms=random.choice([300, 3000]),
        ),
        drift=random.choice([0.0, 0.05, 0.3]),
        raft=HASTY_RAFT if is_quorum else RAFT,
    )


def make_steps(setup: Setup) -> Iterator[Step]:
    """What is done in a history, in order of time; more than any history takes."""
    random = Random(setup.seed ^ 0x5EED)
    broker_faults = random.choice([0.3, 1.0, 2.0])
    controller_faults = random.choice([0.3, 1.0, 2.0])
    if setup.focus is Focus.QUORUM:
        broker_faults = 0.0
    elif setup.focus is Focus.BROKERS or setup.is_embedded:
        controller_faults = 0.1
    clients = 0.3 if setup.focus is Focus.QUORUM else 1.0
    weights = {verb: weight * clients for verb, weight in {**_CLIENTS, **_CARE}.items()}
    weights |= {verb: weight * broker_faults for verb, weight in _BROKER_FAULTS.items()}
    weights |= {verb: weight * controller_faults for verb, weight in _CONTROLLER_FAULTS.items()}
    if setup.focus is Focus.QUORUM:
        weights |= _ELECTION_FAULTS
    if setup.crash is CrashModel.POWER:
        weights |= {verb: weight * broker_faults for verb, weight in _POWER_FAULTS.items()}
    steps_per_s = _STEPS_PER_S * (5 if setup.focus is Focus.QUORUM else 1)
    return draw_steps(random, weights, steps_per_s)


def draw_steps(random: Random, weights: Mapping[str, float], steps_per_s: int) -> Iterator[Step]:
    """Steps by how often each is taken in relation to the others."""
    count = _HORIZON_MS // 1000 * steps_per_s
    at_ms = 0.0
    for verb in random.choices(list(weights), list(weights.values()), k=count):
        at_ms += random.expovariate(steps_per_s / 1000)
        yield Step(int(at_ms), verb, random.getrandbits(32))
