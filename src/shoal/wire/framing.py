"""Kafka's frames: a signed 32-bit length, then that many bytes.

The decoder is made for `asyncio.BufferedProtocol`: it says where to receive next, is told how
much came, and hands out complete frames.

Rules of this file:
- A large frame is received straight into memory of its own; small frames are copied out of a
  buffer that is used again, several of them from one receive. Either way a frame's memory belongs
  to whoever holds the frame: it is not used again before nobody holds a view of it any more, it
  is writable, and it holds that frame only.
- A length is judged before anything is allocated for it, and memory grows with the bytes that
  came, not with those that were announced: a peer that announces 100 MiB and sends nothing
  costs no more than one that announces 1 MiB.
"""

from collections.abc import Sequence, Sized
from struct import Struct
from typing import TypeVar

from shoal.wire.errors import LimitExceeded, Malformed

Part = bytes | bytearray | memoryview
# What may stand among the parts of a message: only its length is looked at here, so that bytes
# which are still in a file can go out from there.
PieceT = TypeVar("PieceT", bound=Sized)

# Kafka's own default of socket.request.max.bytes.
DEFAULT_FRAME_LIMIT = 100 * 1024 * 1024
LENGTH_SIZE = 4

_LENGTH = Struct(">i")
_LARGEST_LENGTH = (1 << 31) - 1
# The shared buffer begins with the first size; the first frame that needs more makes it grow to
# the second. Frames that fit in there with their length are small.
_FIRST_SHARED_SIZE = 32 * 1024
_SHARED_SIZE = 256 * 1024
# A large frame's memory begins with this much and then grows sixteenfold, up to the frame's
# length. For frames of 10 MiB that costs a tenth more CPU than memory for all of it at once;
# doubling costs eight times as much, in copies and in memory given back to the system.
_FIRST_SIZE = 1024 * 1024
_GROWTH = 16
# More than this is never kept.
_KEPT_SIZE = 16 * 1024 * 1024


class FrameDecoder:
    """From a stream of bytes to frames. After an error it is of no further use."""

    __slots__ = (
        "_end",
        "_filled",
        "_large",
        "_length",
        "_limit",
        "_most_spares",
        "_room",
        "_shared",
        "_spares",
        "_start",
        "_taken",
    )

    def __init__(self, limit_bytes: int = DEFAULT_FRAME_LIMIT, *, spares: int = 1) -> None:
        """`spares`: the memory of so many large frames is kept for later ones.

        One is enough where a frame is gone before the next one comes. For those whose frames are
        held for a while memory that was used before costs much less than new one.
        """
        self._limit = min(limit_bytes, _LARGEST_LENGTH)
        # The shared buffer holds received bytes from _start to _end.
        self._shared = memoryview(bytearray(_FIRST_SHARED_SIZE))
        self._start = 0
        self._end = 0
        # How much of it to receive at once: where large frames come, little, as what lands here
        # of a large frame is copied.
        self._room = _FIRST_SHARED_SIZE
        # The large frame that is being received, if there is one.
        self._large: memoryview | None = None
        # The memory of the last large frames.
        self._spares: list[bytearray] = []
        self._most_spares = spares
        self._filled = 0
        self._length = 0
        # Bytes of the stream before the frame that comes next, for positions in errors.
        self._taken = 0

    @property
    def is_mid_frame(self) -> bool:
        """Whether a stream that ended now would end in the middle of a frame."""
        return self._large is not None or self._start != self._end

    @property
    def held_bytes(self) -> int:
        """The memory for what has arrived, and what is kept for the next large frame.

        The shared buffer of a connection is not counted: all have one.
        """
        large = 0 if self._large is None else len(self._large)
        return max(large, sum(map(len, self._spares)))

    def let_go(self) -> None:
        """Give back the memory that is kept for the next large frame."""
        if self._large is None:
            self._spares.clear()

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where to receive next; never empty, and good until `received`. The hint is asyncio's."""
        if self._large is None:
            return self._shared[self._end : self._end + self._room]
        return self._large[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Take `count` bytes that now lie in the buffer; returns the frames they complete."""
        if self._large is not None:
            return self._received_large(count)
        self._end += count
        frames: list[memoryview] = []
        while self._end - self._start >= LENGTH_SIZE:
            length = self._judged_length()
            end = self._start + LENGTH_SIZE + length
            if end > self._end:
                self._expect(length)
                break
            frames.append(memoryview(bytearray(self._shared[self._start + LENGTH_SIZE : end])))
            self._taken += end - self._start
            self._start = end
        self._make_room()
        return frames

    def _judged_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._shared, self._start)[0]
        if length < 0:
            raise Malformed(f"a frame announces {length} bytes", position=self._taken)
        if length > self._limit:
            message = f"a frame announces {length} bytes, the limit is {self._limit}"
            raise LimitExceeded(message, position=self._taken)
        return length

    def _make_room(self) -> None:
        """Move what is left to the front, unless there is nothing or it may stay."""
        left = self._end - self._start
        if left == 0:
            self._start = self._end = 0
        elif self._start and self._end > len(self._shared) // 2:
            self._shared[:left] = self._shared[self._start : self._end]
            self._start, self._end = 0, left

    def _expect(self, length: int) -> None:
        """Make sure that there is a place for the rest of a frame."""
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
        self._large = self._kept(length) or self._memory(min(length, _FIRST_SIZE))
        self._large[: len(arrived)] = arrived
        self._filled = len(arrived)
        self._length = length
        self._start = self._end = 0

    def _kept(self, size: int) -> memoryview | None:
        """Memory of an earlier large frame of which nobody holds anything any more."""
        for spare in self._spares:
            if size <= len(spare):
                try:
                    # Changes nothing, but is refused while there is a view of it.
                    spare.append(0)
                    spare.pop()
                except BufferError:
                    continue
                return memoryview(spare)[:size]
        return None

    def _memory(self, size: int) -> memoryview:
        """New memory for a large frame, kept in the place of the oldest."""
        self._spares.append(bytearray(size))
        del self._spares[: -self._most_spares]
        return memoryview(self._spares[-1])

    def _grown(self, size: int) -> memoryview:
        """More memory for the frame that is being received; kept only where many are."""
        if self._most_spares == 1 or size > _KEPT_SIZE:
            return memoryview(bytearray(size))
        if self._spares:
            self._spares.pop()  # in which the frame began
        return self._memory(size)

    def _received_large(self, count: int) -> list[memoryview]:
        large = self._large
        assert large is not None  # noqa: S101 - for the type checker
        self._filled += count
        if self._filled == self._length:
            self._large = None
            self._taken += LENGTH_SIZE + self._length
            return [large]
        if self._filled == len(large):
            # A new array: the old one cannot be resized while the caller holds a view of it.
            grown = self._grown(min(self._length, self._filled * _GROWTH))
            grown[: self._filled] = large
            self._large = grown
        return []


def frame(parts: Sequence[PieceT]) -> list[bytes | PieceT]:
    """`parts` with their common length in front, ready for `writelines` or `sendmsg`."""
    return [frame_length(sum(map(len, parts))), *parts]


def frame_length(size: int) -> bytes:
    """What stands in front of a frame of so many bytes."""
    if size > _LARGEST_LENGTH:
        raise LimitExceeded(f"{size} bytes do not fit in one frame")
    return _LENGTH.pack(size)
