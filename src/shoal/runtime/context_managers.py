"""`with` and `async with` for classes that stop or close something at the end.

Rules:
- The end of a block stops or closes, also after an error, which continues.
- A producer is flushed before it is closed, unless the block failed: a flush could then wait for
  the broker that caused the failure.
"""

from abc import ABC, abstractmethod
from typing import Self


class StopsOnExit(ABC):
    """`with` starts and stops."""

    @abstractmethod
    def start(self) -> object: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ClosesOnExit(ABC):
    """`async with` closes."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class FlushesOnExit(ClosesOnExit):
    """`async with` flushes and closes; after an error it only closes."""

    @abstractmethod
    async def flush(self) -> None: ...

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()
