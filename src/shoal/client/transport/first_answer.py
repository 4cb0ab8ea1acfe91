"""Runs several attempts and takes the first success.

The next attempt starts when one before it has failed or has taken `stagger_s`: an address that
drops packets must not cost its whole timeout, and a healthy cluster must not get the same request
several times.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shoal.model.errors import ShoalError
from shoal.runtime.tasks import run_awaited

T = TypeVar("T")


class AllFailed(Exception):
    """All attempts failed; `failures` are in the order of the runners."""

    def __init__(self, failures: list[ShoalError]) -> None:
        super().__init__(f"all {len(failures)} failed")
        self.failures = failures


async def race(
    runners: Sequence[Callable[[], Awaitable[T]]],
    *,
    stagger_s: float,
    discard: Callable[[T], None] | None = None,
) -> T:
    """The result of the first runner to succeed; the others are cancelled.

    `discard` gets the results of other runners that succeeded at the same time, or just before
    the race was cancelled.
    """
    tasks: list[asyncio.Task[T]] = []
    winner: asyncio.Task[T] | None = None
    pending: set[asyncio.Task[T]] = set()
    try:
        for runner in runners:
            task = run_awaited("race", _run(runner))
            tasks.append(task)
            pending.add(task)
            is_last = len(tasks) == len(runners)
            while pending:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=None if is_last else stagger_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                winner = next((task for task in done if task.exception() is None), None)
                if winner is not None:
                    return winner.result()
                if not is_last:
                    break
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if discard is not None:
            for task in tasks:
                if task is not winner and not task.cancelled() and task.exception() is None:
                    discard(task.result())
    raise AllFailed([_failure(task) for task in tasks])


async def _run(runner: Callable[[], Awaitable[T]]) -> T:
    return await runner()


def _failure(task: "asyncio.Task[T]") -> ShoalError:
    error = task.exception()
    if not isinstance(error, ShoalError):
        assert error is not None  # noqa: S101 - for the type checker
        raise error
    return error
