"""Hindrances and lanes: what adds up, what waits, and that nothing is lost or overtakes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.net.ways import Effect, Hindrances, Lane

A, B = frozenset({"a", "zone/1"}), frozenset({"b", "zone/2"})


def lane_with(*effects: Effect) -> tuple[Lane, Hindrances, list[int]]:
    hindrances, lane = Hindrances(), Lane()
    numbers = [hindrances.add({"a"}, {"zone/2"}, effect) for effect in effects]
    lane.change(hindrances.between(A, B, born=0))
    return lane, hindrances, numbers


def test_a_hindrance_holds_by_any_name_and_in_its_direction_only() -> None:
    _, hindrances, _ = lane_with(Effect(is_cut=True))
    assert len(hindrances.between(A, B, born=0)) == 1
    assert hindrances.between(B, A, born=0) == ()
    assert hindrances.between(A, frozenset({"c"}), born=0) == ()


def test_delays_add_up_and_a_new_one_holds_for_what_waits() -> None:
    lane, hindrances, numbers = lane_with(Effect(delay_ms=100), Effect(delay_ms=50))
    lane.put(b"x", 1.0)
    assert lane.take(1.1) == ([], 1.15)
    hindrances.remove(numbers[0])
    lane.change(hindrances.between(A, B, born=0))
    assert lane.take(1.1) == ([b"x"], None)


def test_what_is_cut_waits_and_keeps_its_order_and_its_end() -> None:
    lane, hindrances, numbers = lane_with(Effect(is_cut=True))
    for number, data in enumerate((b"one", b"two", Lane.END)):
        lane.put(data, float(number))
    assert lane.take(1000.0) == ([], None)
    assert (lane.is_shut, lane.is_free, lane.held_bytes) == (True, False, 6)
    hindrances.remove(numbers[0])
    lane.change(hindrances.between(A, B, born=0))
    assert lane.take(1000.0) == ([b"one", b"two", Lane.END], None)
    assert (lane.is_free, lane.held_bytes) == (True, 0)


def test_a_stall_holds_for_the_connections_that_were_there() -> None:
    hindrances = Hindrances()
    before = hindrances.last_number
    hindrances.add({"a"}, {"b"}, Effect(is_stalled=True))
    after = hindrances.last_number
    assert len(hindrances.between(A, B, born=before)) == 1
    assert hindrances.between(A, B, born=after) == ()


def test_a_narrow_link_is_shared() -> None:
    hindrances = Hindrances()
    hindrances.add({"a"}, {"b"}, Effect(bytes_per_s=10_000))
    lanes = [Lane(), Lane()]
    for lane in lanes:
        lane.change(hindrances.between(A, B, born=0))
        lane.put(b"x" * 50_000, 0.0)
    passed = [0, 0]
    now = 0.0
    while sum(passed) < 100_000:
        moments = []
        for number, lane in enumerate(lanes):
            out, again = lane.take(now)
            passed[number] += sum(map(len, out))
            if again is not None:
                moments.append(again)
        now = min(moments, default=now)
    # All of it at the bandwidth, but for the last piece and what may be caught up.
    assert 9.8 <= now <= 10.0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "take", "cut", "heal", "delay", "narrow"]),
            st.integers(1, 5000),
        ),
        max_size=40,
    )
)
def test_whatever_happens_all_bytes_pass_in_order(steps: list[tuple[str, int]]) -> None:
    hindrances, lane = Hindrances(), Lane()
    active: list[int] = []
    sent, received = bytearray(), bytearray()
    now = 0.0
    for what, amount in steps:
        now += amount / 10_000
        if what == "put":
            data = bytes((len(sent) + i) % 251 for i in range(amount))
            sent += data
            lane.put(data, now)
        elif what == "take":
            received += b"".join(lane.take(now)[0])
        elif what == "heal" and active:
            hindrances.remove(active.pop())
        elif what in {"cut", "delay", "narrow"}:
            effect = {
                "cut": Effect(is_cut=True),
                "delay": Effect(delay_ms=amount),
                "narrow": Effect(bytes_per_s=amount * 100),
            }[what]
            active.append(hindrances.add({"a"}, {"b"}, effect))
        lane.change(hindrances.between(A, B, born=0))
        assert sent.startswith(received)
        assert lane.held_bytes == len(sent) - len(received)
    for number in active:
        hindrances.remove(number)
    lane.change(())
    received += b"".join(lane.take(now + 1)[0])
    assert received == sent
