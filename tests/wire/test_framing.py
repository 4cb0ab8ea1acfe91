"""Frames out of a stream, however it is cut, and at what cost in memory."""

import asyncio
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.errors import LimitExceeded, Malformed
from shoal.wire.framing import FrameDecoder, frame

SIZES = st.one_of(
    st.integers(0, 200),
    st.sampled_from([32_763, 32_764, 32_765, 32_768, 70_000, 1_048_576, 1_048_577, 5_000_000]),
)


def feed(decoder: FrameDecoder, data: bytes, chunk_bytes: int) -> list[memoryview]:
    """Give `data` to the decoder as a socket would, at most `chunk_bytes` at a time."""
    frames: list[memoryview] = []
    position = 0
    while position < len(data):
        buffer = decoder.get_buffer(-1)
        assert len(buffer) > 0
        count = min(len(buffer), chunk_bytes, len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        frames += decoder.feed(count)
    return frames


def stream_of(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


@given(st.lists(SIZES, max_size=6), st.sampled_from([7, 1000, 32_768, 50_000, 10_000_000]))
def test_frames_come_out_as_they_went_in(sizes: list[int], chunk_bytes: int) -> None:
    if chunk_bytes < 1000:
        sizes = [min(size, 40_000) for size in sizes]
    payloads = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    decoder = FrameDecoder()
    frames = feed(decoder, stream_of(*payloads), chunk_bytes)
    assert frames == payloads
    assert not decoder.is_mid_frame


@pytest.mark.parametrize("size", [10, 200_000, 400_000])
def test_a_frame_belongs_to_its_holder(size: int) -> None:
    decoder = FrameDecoder()
    (first,) = feed(decoder, stream_of(b"a" * size), 4096)
    assert not first.readonly
    first[0] = ord("z")
    feed(decoder, stream_of(b"b" * size, b"c" * size), 4096)
    assert first == b"z" + b"a" * (size - 1)
    assert memoryview(first.obj).nbytes == size, "a frame pins only its own bytes"


def test_memory_of_large_frames_is_used_again_when_nobody_holds_it() -> None:
    decoder = FrameDecoder(spares=4)
    payloads = [bytes([number]) * 3_000_000 for number in range(12)]
    held: list[memoryview] = []
    for payload in payloads:
        (frame_of,) = feed(decoder, stream_of(payload), 100_000)
        held.append(frame_of)
        # Three are in use at any time, as views of their parts.
        for number, view in enumerate(held[-3:], start=len(held) - len(held[-3:])):
            assert view[-1] == number
        if len(held) > 3:
            held[len(held) - 4].release()
    assert decoder.held_bytes == 4 * 3_000_000
    assert [bytes(view) for view in held[-3:]] == payloads[-3:]
    decoder.release_spares()
    assert decoder.held_bytes == 0
    assert [bytes(view) for view in held[-3:]] == payloads[-3:]


@pytest.mark.parametrize("length", [-1, -(2**31)])
def test_a_negative_length_is_refused(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(Malformed) as caught:
        feed(decoder, stream_of(b"12345") + struct.pack(">i", length), 1000)
    assert caught.value.position == 9


def test_a_length_over_the_limit_is_refused_as_soon_as_it_is_known() -> None:
    assert feed(FrameDecoder(limit_bytes=10), stream_of(b"0123456789"), 1000) == [b"0123456789"]
    with pytest.raises(LimitExceeded, match="11 bytes exceeds the limit of 10"):
        feed(FrameDecoder(limit_bytes=10), struct.pack(">i", 11), 1000)


def test_an_announcement_alone_costs_little() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    feed(decoder, struct.pack(">i", 100 * 1024 * 1024) + bytes(500_000), 65_536)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2_500_000
    assert decoder.is_mid_frame


def test_it_says_whether_the_stream_ends_inside_a_frame() -> None:
    decoder = FrameDecoder()
    assert not decoder.is_mid_frame
    feed(decoder, b"\x00\x00", 10)
    assert decoder.is_mid_frame


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_frame_is_its_length_and_its_parts(parts: list[bytes]) -> None:
    framed = frame(parts)
    assert b"".join(framed) == stream_of(b"".join(parts))
    assert all(given is taken for given, taken in zip(parts, framed[1:], strict=True))


class Receiver(asyncio.BufferedProtocol):
    """The way in which connections use the decoder."""

    def __init__(self, expected: int) -> None:
        self.decoder = FrameDecoder()
        self.expected = expected
        self.frames: list[memoryview] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.frames += self.decoder.feed(nbytes)
        if len(self.frames) == self.expected:
            self.done.set_result(None)


async def test_over_a_real_socket() -> None:
    payloads = [b"small", bytes(range(256)) * 20_000, b"", b"x" * 100_000]
    loop = asyncio.get_running_loop()
    receiver = Receiver(len(payloads))
    server = await loop.create_server(lambda: receiver, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for payload in payloads:
        writer.writelines(frame([payload[:3], payload[3:]]))
    await writer.drain()
    await receiver.done
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    assert receiver.frames == payloads
