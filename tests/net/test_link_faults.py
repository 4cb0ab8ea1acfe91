"""Link faults and their queues: effects combine, bytes wait, nothing is lost or reordered."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.net.link_faults import LinkEffect, LinkFaults, LinkQueue

END = b""
A, B = frozenset({"a", "zone/1"}), frozenset({"b", "zone/2"})


def byte_queue() -> LinkQueue[bytes]:
    return LinkQueue(lambda data, size: (data[:size], data[size:]))


def queue_with(*effects: LinkEffect) -> tuple[LinkQueue[bytes], LinkFaults, list[int]]:
    faults, queue = LinkFaults(), byte_queue()
    numbers = [faults.add({"a"}, {"zone/2"}, effect) for effect in effects]
    queue.set_faults(faults.between(A, B, created_after=0))
    return queue, faults, numbers


def test_a_fault_applies_by_any_name_and_in_its_direction_only() -> None:
    _, faults, _ = queue_with(LinkEffect(is_cut=True))
    assert len(faults.between(A, B, created_after=0)) == 1
    assert faults.between(B, A, created_after=0) == ()
    assert faults.between(A, frozenset({"c"}), created_after=0) == ()


def test_delays_add_up_and_a_new_one_applies_to_held_bytes() -> None:
    queue, faults, numbers = queue_with(LinkEffect(delay_ms=100), LinkEffect(delay_ms=50))
    queue.put(b"x", 1, 1.0)
    assert queue.take(1.1) == ([], 1.15)
    faults.remove(numbers[0])
    queue.set_faults(faults.between(A, B, created_after=0))
    assert queue.take(1.1) == ([b"x"], None)


def test_a_cut_holds_bytes_and_the_end_in_order() -> None:
    queue, faults, numbers = queue_with(LinkEffect(is_cut=True))
    for number, data in enumerate((b"one", b"two", END)):
        queue.put(data, len(data), float(number))
    assert queue.take(1000.0) == ([], None)
    assert (queue.is_blocked, queue.is_free, queue.held_bytes) == (True, False, 6)
    faults.remove(numbers[0])
    queue.set_faults(faults.between(A, B, created_after=0))
    assert queue.take(1000.0) == ([b"one", b"two", END], None)
    assert (queue.is_free, queue.held_bytes) == (True, 0)


def test_a_stall_applies_to_existing_connections_only() -> None:
    faults = LinkFaults()
    before = faults.last_fault_number
    faults.add({"a"}, {"b"}, LinkEffect(is_stalled=True))
    after = faults.last_fault_number
    assert len(faults.between(A, B, created_after=before)) == 1
    assert faults.between(A, B, created_after=after) == ()


def test_a_bandwidth_limit_is_shared() -> None:
    faults = LinkFaults()
    faults.add({"a"}, {"b"}, LinkEffect(bytes_per_s=10_000))
    queues = [byte_queue(), byte_queue()]
    for queue in queues:
        queue.set_faults(faults.between(A, B, created_after=0))
        queue.put(b"x" * 50_000, 50_000, 0.0)
    passed = [0, 0]
    now = 0.0
    while sum(passed) < 100_000:
        due_times = []
        for number, queue in enumerate(queues):
            out, again = queue.take(now)
            passed[number] += sum(map(len, out))
            if again is not None:
                due_times.append(again)
        now = min(due_times, default=now)
    # All of it at the bandwidth, but for the last piece and what may be caught up.
    assert 9.8 <= now <= 10.0


def test_an_item_passes_as_a_whole_when_its_last_byte_arrives() -> None:
    faults = LinkFaults()
    number = faults.add({"a"}, {"b"}, LinkEffect(delay_ms=1000, bytes_per_s=100))
    queue: LinkQueue[str] = LinkQueue()
    queue.set_faults(faults.between(A, B, created_after=0))
    for item in ("one", "two", "three"):
        queue.put(item, 50, 0.0)
    assert queue.take(0.0) == ([], 1.0)
    assert queue.take(1.0) == ([], 1.5)
    assert queue.take(1.5) == (["one"], 2.0)
    # The second is on its way; without the limit it arrives at once.
    faults.remove(number)
    queue.set_faults(faults.between(A, B, created_after=0))
    assert queue.take(1.6) == (["two", "three"], None)


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
    faults, queue = LinkFaults(), byte_queue()
    active: list[int] = []
    sent, received = bytearray(), bytearray()
    now = 0.0
    for what, amount in steps:
        now += amount / 10_000
        if what == "put":
            data = bytes((len(sent) + i) % 251 for i in range(amount))
            sent += data
            queue.put(data, len(data), now)
        elif what == "take":
            received += b"".join(queue.take(now)[0])
        elif what == "heal" and active:
            faults.remove(active.pop())
        elif what in {"cut", "delay", "narrow"}:
            effect = {
                "cut": LinkEffect(is_cut=True),
                "delay": LinkEffect(delay_ms=amount),
                "narrow": LinkEffect(bytes_per_s=amount * 100),
            }[what]
            active.append(faults.add({"a"}, {"b"}, effect))
        queue.set_faults(faults.between(A, B, created_after=0))
        assert sent.startswith(received)
        assert queue.held_bytes == len(sent) - len(received)
    for number in active:
        faults.remove(number)
    queue.set_faults(())
    received += b"".join(queue.take(now + 1)[0])
    assert received == sent
