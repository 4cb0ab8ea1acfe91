"""Messages of the control channel round-trip, and malformed lines are refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.serialised import names_of
from shoal.net.control_port import ControlError, LineDecoder
from shoal.net.messages import (
    DRIVER_MESSAGES,
    WORKER_MESSAGES,
    Ack,
    Commit,
    Hello,
    Lease,
    Message,
    decode_driver_message,
    decode_worker_message,
    encode_message,
)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_by_type: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=50),
    int: st.integers(),
    int | None: st.none() | st.integers(),
    dict[str, Any]: st.dictionaries(st.text(max_size=8), _json),
    list[Any]: st.lists(_json, max_size=4),
}


def _messages(kinds: Any) -> st.SearchStrategy[Message]:
    return st.one_of(
        *(
            st.builds(kind, **{n.attribute: _by_type[n.hint] for n in names_of(kind)})
            for kind in kinds
        )
    )


@given(_messages(WORKER_MESSAGES.values()))
def test_worker_messages_survive_the_wire(message: Message) -> None:
    line = encode_message(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_worker_message(line) == message


@given(_messages(DRIVER_MESSAGES.values()))
def test_driver_messages_survive_the_wire(message: Message) -> None:
    assert decode_driver_message(encode_message(message)) == message


@given(st.binary(max_size=200) | _json.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_message_or_a_control_error(line: bytes) -> None:
    message: object = None
    with contextlib.suppress(ControlError):
        message = decode_worker_message(line)
    assert message is None or type(message) in WORKER_MESSAGES.values()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"type":"lease"}', "unknown type"),
        (b'{"type":7}', "unknown type"),
        (b'{"type":"commit","number":1}', "'commit' lacks the field 'line'"),
        (b'{"type":"commit","number":1,"line":{},"x":1}', "'commit' has the unknown field 'x'"),
        (b'{"type":"commit","number":true,"line":{}}', "number is True"),
        (b'{"type":"commit","number":1,"line":[]}', "line is []"),
    ],
)
def test_bad_lines_are_named(line: bytes, said: str) -> None:
    with pytest.raises(ControlError, match="control line") as caught:
        decode_worker_message(line)
    assert said in str(caught.value)


def test_a_message_of_the_other_direction_is_unknown() -> None:
    with pytest.raises(ControlError, match="unknown type"):
        decode_driver_message(encode_message(Commit(1, {})))
    with pytest.raises(ControlError, match="unknown type"):
        decode_worker_message(encode_message(Ack(1)))


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_lines_come_out_whole_however_the_bytes_arrive(lines: list[bytes]) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    decoder = LineDecoder(30)
    found = []
    for position in range(0, len(stream), 7):
        decoder.feed(stream[position : position + 7])
        while (line := decoder.next_line()) is not None:
            found.append(line)
    assert found == lines


def test_a_line_is_refused_once_it_passes_the_limit() -> None:
    decoder = LineDecoder(10)
    decoder.feed(b"x" * 10)
    assert decoder.next_line() is None
    decoder.feed(b"\n")
    assert decoder.next_line() == b"x" * 10
    decoder.feed(b"x" * 11)
    with pytest.raises(ControlError, match="longer than 10 bytes"):
        decoder.next_line()


def test_messages_name_their_worker() -> None:
    hello = Hello("p0", 3, "secret", "i", 7, "h")
    assert json.loads(encode_message(hello))["worker"] == "p0"
    assert json.loads(encode_message(Lease("p0", 3, None)))["start_at_us"] is None
