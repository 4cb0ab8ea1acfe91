"""Both ends of the control channel as state machines, without sockets."""

import pytest

from shoal.net.channel import (
    HELLO_LIMIT_BYTES,
    PENDING_COMMITS_LIMIT,
    DriverChannel,
    DriverLost,
    WorkerChannel,
)
from shoal.net.control_port import ControlError
from shoal.net.messages import (
    Ack,
    Commit,
    Hello,
    Lease,
    LeaseRefused,
    Probe,
    ProbeReply,
    ProgressReport,
    Stop,
    decode_worker_message,
    encode_message,
)

HELLO = Hello("p0", 1, "secret", "instance", 7, "host")


def _decode_sent(data: bytes) -> list[object]:
    return [decode_worker_message(line) for line in data.splitlines()]


def test_the_driver_takes_messages_only_after_a_hello_with_the_token() -> None:
    channel = DriverChannel("secret", now=0.0)
    assert channel.receive(encode_message(HELLO)[:5]) == []
    rest = encode_message(HELLO)[5:] + encode_message(ProgressReport({"sent": 1}))
    assert channel.receive(rest) == [HELLO, ProgressReport({"sent": 1})]
    assert channel.hello == HELLO
    assert not channel.is_overdue(1e9)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encode_message(Hello("p0", 1, "wrong", "i", 7, "h")), "wrong token"),
        (encode_message(Hello("p0", 1, "", "i", 7, "h")), "wrong token"),
        (encode_message(Hello("p0", 1, "sécret", "i", 7, "h")), "wrong token"),
        (encode_message(ProgressReport({})), "was not a hello"),
        (b"x" * (HELLO_LIMIT_BYTES + 1), "longer than"),
        (encode_message(HELLO) * 2, "second hello"),
    ],
)
def test_the_driver_drops_a_peer_that_breaks_a_rule(data: bytes, said: str) -> None:
    with pytest.raises(ControlError, match=said):
        DriverChannel("secret", now=0.0).receive(data)


def test_a_peer_without_a_hello_is_overdue_after_its_time() -> None:
    channel = DriverChannel("secret", now=100.0)
    assert not channel.is_overdue(105.0)
    assert channel.is_overdue(105.1)


def _lease_worker() -> WorkerChannel:
    channel = WorkerChannel(HELLO, now=0.0)
    assert _decode_sent(channel.connection_made()) == [HELLO]
    events, answers = channel.receive(encode_message(Lease("p0", 1, None)), now=0.0, clock_us=0)
    assert events == [Lease("p0", 1, None)]
    assert answers == b""
    return channel


def test_a_commit_waits_for_the_lease_and_keeps_its_number_over_connections() -> None:
    channel = WorkerChannel(HELLO, now=0.0)
    number, data = channel.commit({"kind": "reserve"})
    assert (number, data) == (1, b"")
    channel.connection_made()
    _, answers = channel.receive(encode_message(Lease("p0", 1, None)), now=0.0, clock_us=0)
    assert _decode_sent(answers) == [Commit(1, {"kind": "reserve"})]
    number, data = channel.commit({"kind": "segment"})
    assert _decode_sent(data) == [Commit(2, {"kind": "segment"})]
    channel.connection_lost()
    channel.connection_made()
    _, answers = channel.receive(encode_message(Lease("p0", 1, None)), now=0.0, clock_us=0)
    assert _decode_sent(answers) == [Commit(1, {"kind": "reserve"}), Commit(2, {"kind": "segment"})]
    channel.receive(encode_message(Ack(1)) + encode_message(Ack(2)), now=0.0, clock_us=0)
    assert channel.pending_commits == 0


def test_an_acknowledgement_out_of_order_breaks_the_connection() -> None:
    channel = _lease_worker()
    channel.commit({})
    channel.commit({})
    with pytest.raises(ControlError, match="out of order"):
        channel.receive(encode_message(Ack(2)), now=0.0, clock_us=0)


def test_commits_are_bounded_in_number_and_size() -> None:
    channel = _lease_worker()
    with pytest.raises(ControlError, match="exceeds the limit"):
        channel.commit({"path": "x" * (1 << 20)})
    for _ in range(PENDING_COMMITS_LIMIT):
        channel.commit({})
    with pytest.raises(ControlError, match="commits are not acknowledged"):
        channel.commit({})


def test_only_the_newest_progress_waits_for_a_lease() -> None:
    channel = WorkerChannel(HELLO, now=0.0)
    assert channel.progress({"sent": 1}) == b""
    assert channel.progress({"sent": 2}) == b""
    channel.connection_made()
    _, answers = channel.receive(encode_message(Lease("p0", 1, None)), now=0.0, clock_us=0)
    assert _decode_sent(answers) == [ProgressReport({"sent": 2})]
    assert _decode_sent(channel.progress({"sent": 3})) == [ProgressReport({"sent": 3})]


def test_a_probe_is_answered_with_both_clocks_and_is_not_an_event() -> None:
    channel = _lease_worker()
    events, answers = channel.receive(encode_message(Probe(111)), now=0.0, clock_us=222)
    assert events == []
    assert _decode_sent(answers) == [ProbeReply(111, 222)]


def test_a_refusal_takes_the_lease_away() -> None:
    channel = _lease_worker()
    events, _ = channel.receive(encode_message(LeaseRefused("fenced")), now=0.0, clock_us=0)
    assert events == [LeaseRefused("fenced")]
    assert channel.refused == "fenced"
    assert channel.commit({})[1] == b""


def test_silence_for_ten_seconds_is_a_lost_driver_reported_once() -> None:
    channel = _lease_worker()
    for tenth in range(101):
        assert channel.tick(tenth / 10) is None
    assert channel.tick(10.1) == DriverLost(10.1)
    assert channel.tick(10.2) is None


def test_any_message_of_the_driver_ends_the_silence() -> None:
    channel = _lease_worker()
    for second in range(9):
        channel.tick(float(second))
    channel.receive(encode_message(Stop("x")), now=9.0, clock_us=0)
    for second in range(9, 20):
        assert channel.tick(float(second)) is None
    assert channel.tick(20.0) == DriverLost(11.0)


def test_time_in_which_the_worker_stood_still_is_not_the_drivers_silence() -> None:
    channel = _lease_worker()
    channel.tick(1.0)
    assert channel.tick(61.0) is None  # paused for a minute
    for second in range(62, 71):
        assert channel.tick(float(second)) is None
    lost = channel.tick(71.5)
    assert isinstance(lost, DriverLost)
