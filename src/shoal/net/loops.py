"""Calls into an event loop that runs in another thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Result = TypeVar("_Result")


def call_in(
    loop: asyncio.AbstractEventLoop, function: Callable[[], _Result], *, limit_s: float
) -> _Result:
    """Run `function` in the loop's thread and return its result or raise its error.

    `TimeoutError` if it does not finish within `limit_s`.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            done.set_exception(error)

    loop.call_soon_threadsafe(run)
    return done.result(limit_s)
