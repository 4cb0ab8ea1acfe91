"""Kafka's frames: a signed 32-bit length, then that many bytes.

The decoder is made for `asyncio.BufferedProtocol`: `get_buffer` returns where to receive next, and
`feed` takes the number of received bytes and returns the frames that they complete.

Rules of this file:
- A large frame is received directly into memory of its own; small frames are copied out of a shared
  buffer, several of them from one receive. Either way a frame's memory belongs to the holder of the
  frame: it is not reused while a view of it exists, it is writable, and it has that frame only.
- A length is checked before anything is allocated for it, and memory grows with the bytes that
  arrived, not with those that were announced: a peer that announces 100 MiB and sends nothing costs
  no more than one that announces 1 MiB.
"""

from collections.abc import Sequence, Sized
from struct import Struct
from typing import TypeVar

from shoal.wire.errors import LimitExceeded, Malformed

Part = bytes | bytearray | memoryview
# A part of a message: only its length is used here, so that bytes that are still in a file can be
# sent from there.
PieceT = TypeVar("PieceT", bound=Sized)

# Kafka's default of socket.request.max.bytes.
DEFAULT_FRAME_LIMIT = 100 * 1024 * 1024
LENGTH_SIZE = 4

_LENGTH = Struct(">i")
_LARGEST_LENGTH = (1 << 31) - 1
# The shared buffer begins with the first size, and grows to the second when a frame needs it. A
# frame that fits in there with its length is small.
_FIRST_SHARED_SIZE = 32 * 1024
_SHARED_SIZE = 256 * 1024
# The memory of a large frame begins with this size and then grows sixteenfold, up to the length of
# the frame. For frames of 10 MiB that costs a tenth more CPU than allocating all of it at once;
# doubling costs eight times as much, for copies and for memory returned to the system.
_FIRST_SIZE = 1024 * 1024
_GROWTH = 16
# A larger buffer is never kept for reuse.
_KEPT_SIZE = 16 * 1024 * 1024


class FrameDecoder:
    """Splits a stream of bytes into frames. After an error it must not be used again."""

    __slots__ = (
        "_consumed",
        "_end",
        "_filled",
        "_large",
        "_length",
        "_limit",
        "_max_spares",
        "_room",
        "_shared",
        "_spares",
        "_start",
    )

    def __init__(self, limit_bytes: int = DEFAULT_FRAME_LIMIT, *, spares: int = 1) -> None:
        """`spares` is the number of buffers of large frames that are kept for later ones.

        One is enough if a frame is released before the next one arrives. If frames are held
        for a while, more spares help: reused memory costs much less than new memory.
        """
        self._limit = min(limit_bytes, _LARGEST_LENGTH)
        # The shared buffer has received bytes from _start to _end.
        self._shared = memoryview(bytearray(_FIRST_SHARED_SIZE))
        self._start = 0
        self._end = 0
        # How many bytes to receive at once: few after a large frame, because the part of a large
        # frame that arrives here must be copied.
        self._room = _FIRST_SHARED_SIZE
        # The large frame that is being received, or None.
        self._large: memoryview | None = None
        # The buffers of the last large frames.
        self._spares: list[bytearray] = []
        self._max_spares = spares
        self._filled = 0
        self._length = 0
        # Bytes of the stream before the next frame, for positions in errors.
        self._consumed = 0

    @property
    def is_mid_frame(self) -> bool:
        """Whether a stream that ended now would end in the middle of a frame."""
        return self._large is not None or self._start != self._end

    @property
    def held_bytes(self) -> int:
        """The memory of the large frame that is being received, and of the spares.

        The shared buffer is not counted: every connection has one.
        """
        large = 0 if self._large is None else len(self._large)
        return max(large, sum(map(len, self._spares)))

    def release_spares(self) -> None:
        """Free the memory that is kept for the next large frame."""
        if self._large is None:
            self._spares.clear()

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where to receive next; never empty, and valid until `feed`. The hint is asyncio's."""
        if self._large is None:
            return self._shared[self._end : self._end + self._room]
        return self._large[self._filled :]

    def feed(self, count: int) -> list[memoryview]:
        """Process `count` bytes that are now in the buffer; returns the frames they complete."""
        if self._large is not None:
            return self._feed_large(count)
        self._end += count
        frames: list[memoryview] = []
        while self._end - self._start >= LENGTH_SIZE:
            length = self._read_length()
            end = self._start + LENGTH_SIZE + length
            if end > self._end:
                self._make_space(length)
                break
            frames.append(memoryview(bytearray(self._shared[self._start + LENGTH_SIZE : end])))
            self._consumed += end - self._start
            self._start = end
        self._make_room()
        return frames

    def _read_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._shared, self._start)[0]
        if length < 0:
            raise Malformed(
                f"a frame has an invalid length: {length} bytes", position=self._consumed
            )
        if length > self._limit:
            message = f"a frame of {length} bytes exceeds the limit of {self._limit} bytes"
            raise LimitExceeded(message, position=self._consumed)
        return length

    def _make_room(self) -> None:
        """Move the remaining bytes to the front if the buffer is more than half full."""
        left = self._end - self._start
        if left == 0:
            self._start = self._end = 0
        elif self._start and self._end > len(self._shared) // 2:
            self._shared[:left] = self._shared[self._start : self._end]
            self._start, self._end = 0, left

    def _make_space(self, length: int) -> None:
        """Provide memory for the rest of a frame."""
        size = LENGTH_SIZE + length
        if size > _SHARED_SIZE:
            self._begin_large(length)
            self._room = _FIRST_SHARED_SIZE
            return
        if size > len(self._shared):
            grown = memoryview(bytearray(_SHARED_SIZE))
            grown[: self._end] = self._shared[: self._end]
            self._shared = grown
        self._room = len(self._shared)

    def _begin_large(self, length: int) -> None:
        arrived = self._shared[self._start + LENGTH_SIZE : self._end]
        self._large = self._find_spare(length) or self._allocate(min(length, _FIRST_SIZE))
        self._large[: len(arrived)] = arrived
        self._filled = len(arrived)
        self._length = length
        self._start = self._end = 0

    def _find_spare(self, size: int) -> memoryview | None:
        """A buffer of an earlier large frame that has no views any longer."""
        for spare in self._spares:
            if size <= len(spare):
                try:
                    # Changes nothing, but raises BufferError while a view exists.
                    spare.append(0)
                    spare.pop()
                except BufferError:
                    continue
                return memoryview(spare)[:size]
        return None

    def _allocate(self, size: int) -> memoryview:
        """A new buffer for a large frame, which replaces the oldest spare."""
        self._spares.append(bytearray(size))
        del self._spares[: -self._max_spares]
        return memoryview(self._spares[-1])

    def _grow(self, size: int) -> memoryview:
        """A larger buffer for the current frame; kept only if there are several spares."""
        if self._max_spares == 1 or size > _KEPT_SIZE:
            return memoryview(bytearray(size))
        if self._spares:
            self._spares.pop()  # the smaller buffer of this frame
        return self._allocate(size)

    def _feed_large(self, count: int) -> list[memoryview]:
        large = self._large
        assert large is not None  # noqa: S101 - for the type checker
        self._filled += count
        if self._filled == self._length:
            self._large = None
            self._consumed += LENGTH_SIZE + self._length
            return [large]
        if self._filled == len(large):
            # A new array: the old one cannot be resized while the caller holds a view of it.
            grown = self._grow(min(self._length, self._filled * _GROWTH))
            grown[: self._filled] = large
            self._large = grown
        return []


def frame(parts: Sequence[PieceT]) -> list[bytes | PieceT]:
    """`parts` after their total length, ready for `writelines` or `sendmsg`."""
    return [frame_length(sum(map(len, parts))), *parts]


def frame_length(size: int) -> bytes:
    """The length field of a frame of `size` bytes."""
    if size > _LARGEST_LENGTH:
        raise LimitExceeded(f"{size} bytes do not fit in one frame")
    return _LENGTH.pack(size)
