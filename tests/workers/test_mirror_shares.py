"""Who copies which partition: evenly, one owner at a time, and little moves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.mirror.routes import Route
from shoal.model.topics import TopicPartition
from shoal.workers.mirror_shares import PATIENCE_S, MirrorShares

NAMES = ("a", "b", "c")


def _routes(count: int) -> list[Route]:
    partitions = [TopicPartition("t", number) for number in range(count)]
    return [Route(tp, tp) for tp in partitions]


class _World:
    """Workers that carry out what they are told, when they are let."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self.shares = MirrorShares(names)
        self.epochs = dict.fromkeys(names, 0)
        self.live: set[str] = set()
        self.told: dict[str, tuple[int, list[Route]]] = {}
        self.done: dict[str, int] = dict.fromkeys(names, 0)
        self.held: dict[str, set[Route]] = {name: set() for name in names}
        self.now = 0.0

    def start(self, name: str) -> None:
        self.live.add(name)
        self.epochs[name] += 1
        self.done[name] = -1

    def lose(self, name: str) -> None:
        self.live.discard(name)
        self.held[name] = set()
        self.told.pop(name, None)

    def obey(self, name: str) -> None:
        if name in self.told:
            self.done[name], routes = self.told[name]
            self.held[name] = set(routes)

    def look(self, routes: list[Route]) -> None:
        for name, epoch in self.epochs.items():
            self.shares.update_worker(
                name,
                epoch=epoch,
                is_live=name in self.live,
                number=self.done[name],
                now=self.now,
            )
        for name, order in self.shares.share(routes, self.now).items():
            assert name in self.live
            self.told[name] = order

    def settle(self, routes: list[Route]) -> None:
        for _ in range(4):
            self.look(routes)
            for name in self.live:
                self.obey(name)

    def check_single_owners(self) -> None:
        owners = Counter(route for held in self.held.values() for route in held)
        assert not owners or max(owners.values()) == 1


def test_partitions_are_shared_evenly_and_stay_where_they_are() -> None:
    world = _World()
    for name in NAMES:
        world.start(name)
    routes = _routes(10)
    world.settle(routes)
    assert sorted(len(held) for held in world.held.values()) == [3, 3, 4]
    before = {name: set(held) for name, held in world.held.items()}
    world.settle([*routes, *_routes(11)[10:]])
    assert all(before[name] <= world.held[name] for name in NAMES)


def test_a_lost_worker_is_waited_for_and_then_replaced() -> None:
    world = _World()
    for name in NAMES:
        world.start(name)
    routes = _routes(9)
    world.settle(routes)
    its = set(world.held["b"])
    world.lose("b")
    world.now = 1.0
    world.settle(routes)
    assert not its & (world.held["a"] | world.held["c"])
    world.now = 1.0 + PATIENCE_S
    world.settle(routes)
    assert its <= world.held["a"] | world.held["c"]
    world.start("b")
    world.settle(routes)
    assert sorted(len(held) for held in world.held.values()) == [3, 3, 3]


def test_one_that_comes_back_in_time_gets_its_own_again() -> None:
    world = _World()
    for name in NAMES:
        world.start(name)
    routes = _routes(9)
    world.settle(routes)
    its = set(world.held["b"])
    world.lose("b")
    world.now = 1.0
    world.look(routes)
    world.start("b")
    world.settle(routes)
    assert world.held["b"] == its


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "lose", "obey", "look", "later"]), st.sampled_from(NAMES)),
    max_size=80,
)


@given(events=EVENTS, count=st.integers(0, 8))
def test_no_partition_ever_has_two_owners_that_live(
    events: list[tuple[str, str]], count: int
) -> None:
    world = _World()
    routes = _routes(count)
    for event, name in events:
        if event == "start" and name not in world.live:
            world.start(name)
        elif event == "lose" and name in world.live:
            world.lose(name)
        elif event == "obey" and name in world.live:
            world.obey(name)
        elif event == "later":
            world.now += 3.0
        world.look(routes)
        world.check_single_owners()
    for name in NAMES:
        if name not in world.live:
            world.start(name)
    world.settle(routes)
    assert set().union(*world.held.values()) == set(routes)
