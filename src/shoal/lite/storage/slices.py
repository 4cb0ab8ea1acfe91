"""Bytes of a log that are still in its file.

A slice is sent to a client without passing through this process (sendfile), or read where its
bytes are needed. It stays valid when its segment is deleted: the file stays open as long as a slice
of it exists.
"""

import os
from typing import Final, Self

from shoal.lite.storage.disk import read


class OpenFile:
    """An open file that is closed with its last reference."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor: Final = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class LogSlice:
    """A range of bytes in a file: complete batches."""

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: OpenFile | None, position: int, size: int) -> None:
        self._file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        if self._file is None:
            return b""
        content = read(self._file.descriptor, self.size, self.position)
        if len(content) < self.size:
            raise _shorter()
        return content

    def require_whole(self) -> Self:
        """`OSError` if the file became shorter, so that the slice could not be sent."""
        if self._file is not None:
            file_size = os.fstat(self._file.descriptor).st_size
            if self.position + self.size > file_size:
                raise _shorter()
        return self

    def send_to(self, socket_descriptor: int) -> int:
        """Send as much as the socket accepts, and keep the rest; returns the bytes sent."""
        if self._file is None:
            return 0
        sent = os.sendfile(socket_descriptor, self._file.descriptor, self.position, self.size)
        if sent == 0:
            raise _shorter()
        self.position += sent
        self.size -= sent
        return sent


def _shorter() -> OSError:
    return OSError("the log file is shorter than what was written to it")


NOTHING = LogSlice(None, 0, 0)
