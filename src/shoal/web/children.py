"""Processes that work for the server, so that it stays small and has no connections.

Rules:
- A child reads one request from its standard input, writes answers as lines of JSON, and ends. An
  answer with `error` is raised here.
- Of each kind a limited number runs at a time; the next ones wait. A child that takes too long is
  killed. A child with many answers is killed when nobody reads them.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from shoal.model.errors import SystemFailure, UsageError
from shoal.runtime.tasks import log_only, run_once

Json = dict[str, Any]
TIMEOUT_S: Final = 120.0
LINE_LIMIT_BYTES: Final = 4 * 1024 * 1024


async def _await_end(process: asyncio.subprocess.Process) -> None:
    await process.wait()


class ChildKind:
    """Children that run the same module."""

    def __init__(self, module: str, what: str, most: int) -> None:
        self._module = module
        self._what = what
        self._most = most
        self._running = asyncio.Semaphore(most)

    @property
    def is_full(self) -> bool:
        return self._running.locked()

    async def ask(self, request: Json) -> Json:
        """The one answer to a request."""
        async with self._start(request) as process:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await process.stdout.read()
                    await process.wait()
                    return self._read(answer)
            except TimeoutError as error:
                raise SystemFailure(f"{self._what} took too long") from error

    async def follow(self, request: Json) -> AsyncIterator[Json]:
        """The answers to a request, as they come."""
        async with self._start(request) as process:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            while line := await process.stdout.readline():
                yield self._read(line)
            await process.wait()

    @asynccontextmanager
    async def _start(self, request: Json) -> AsyncIterator[asyncio.subprocess.Process]:
        async with self._running:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT_BYTES,
            )
            assert process.stdin is not None  # noqa: S101 - for the type checker
            try:
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                # Not awaited here: a request that was cancelled cannot wait for anything.
                run_once("end of a child", _await_end(process), on_failure=log_only)

    def _read(self, data: bytes) -> Json:
        try:
            answer: Json = json.loads(data)
        except ValueError as error:
            text = f"{self._what} failed; see the output of shoal serve"
            raise SystemFailure(text) from error
        if "error" in answer:
            raise UsageError(answer["error"], remedy=answer.get("remedy"))
        return answer
