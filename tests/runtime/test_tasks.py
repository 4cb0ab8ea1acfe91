"""No background work dies silently: each policy, each way to start work, and what passes."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable

import pytest

from shoal.runtime import tasks

QUICK = tasks.RestartBackoff(first_s=0.001, longest_s=0.004)


def count_of(name: str) -> int:
    return sum(each.count for each in tasks.failure_counts() if each.name == name)


def lines_of(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [line for line in caplog.records if line.getMessage().startswith(f"{name} failed")]


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - anything may be waited for
            await asyncio.sleep(0.001)


async def test_endless_work_is_restarted_after_errors(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 3:
            raise KeyError("unexpected")
        await asyncio.Event().wait()

    task = tasks.keep_running("restarted work", work, backoff=QUICK)
    await wait_for(lambda: attempts == 4)
    assert not task.done()
    assert count_of("restarted work") == 3
    # The same error once, with its traceback.
    [line] = lines_of(caplog, "restarted work")
    assert line.exc_info is not None
    assert "it is restarted in 0.001 s" in line.getMessage()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert attempts == 4


async def test_endless_work_may_end() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    await asyncio.wait_for(tasks.keep_running("work that ends", work), 30)
    assert count_of("work that ends") == 0


async def test_a_task_is_cancelled_while_it_waits_for_its_restart() -> None:
    async def work() -> None:
        raise ValueError

    task = tasks.keep_running("slow restart", work, backoff=tasks.RestartBackoff(3600.0, 3600.0))
    await wait_for(lambda: count_of("slow restart") == 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_backoff_grows_to_its_limit() -> None:
    backoff = tasks.RestartBackoff(0.1, 1.0)
    pauses = [backoff.first_s]
    for _ in range(5):
        pauses.append(backoff.after(pauses[-1]))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_the_owner_hears_of_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Exception] = []
    error = RuntimeError("boom")

    async def work() -> None:
        raise error

    task = tasks.run_once("failing work", work(), on_failure=heard.append)
    await task
    assert heard == [error]
    assert count_of("failing work") == 1
    [line] = lines_of(caplog, "failing work")
    assert "RuntimeError: boom" in line.getMessage()


async def test_a_failing_handler_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    def handle(_: Exception) -> None:
        raise LookupError("second")

    async def work() -> None:
        raise RuntimeError("first")

    await tasks.run_once("handled badly", work(), on_failure=handle)
    assert count_of("handled badly") == 1
    assert count_of("handled badly (handling its failure)") == 1
    assert len([line for line in caplog.records if "handled badly" in line.getMessage()]) == 2


async def test_cancelled_work_is_not_a_failure() -> None:
    heard: list[Exception] = []
    task = tasks.run_once("cancelled work", asyncio.sleep(3600), on_failure=heard.append)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not heard
    assert count_of("cancelled work") == 0


async def test_work_may_be_cancelled_before_it_begins() -> None:
    async def work() -> None:
        raise AssertionError("it has begun")

    task = tasks.run_once("work not begun", work(), on_failure=tasks.log_only)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.sleep(0)
    gc.collect()  # a coroutine that was never awaited would warn, which is an error here
    assert count_of("work not begun") == 0


async def test_awaited_work_gives_result_and_error_to_its_owner() -> None:
    async def give(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await tasks.run_awaited("awaited", give(None)) == 7
    with pytest.raises(LookupError):
        await tasks.run_awaited("awaited", give(LookupError()))
    assert count_of("awaited") == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_requests_to_end_the_process_pass(error: type[BaseException]) -> None:
    async def work() -> None:
        raise error

    started: list[asyncio.Task[None]] = []

    async def main() -> None:
        started.append(tasks.keep_running("interrupted", work, backoff=QUICK))
        await asyncio.sleep(3600)

    with pytest.raises(error):
        asyncio.run(main())
    assert isinstance(started[0].exception(), error)
    assert count_of("interrupted") == 0


async def test_a_timer_continues_after_a_failed_call(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("odd")

    timer = tasks.call_every("timer", lambda: 0.001, work)
    await wait_for(lambda: calls >= 4)
    timer.cancel()
    timer.cancel()
    seen = calls
    await asyncio.sleep(0.02)
    assert calls == seen
    assert count_of("timer") == 1
    assert len(lines_of(caplog, "timer")) == 1


async def test_a_timer_continues_though_its_pause_cannot_be_told() -> None:
    calls = asked = 0

    def pause_s() -> float:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise LookupError("odd")
        return 0.001

    def work() -> None:
        nonlocal calls
        calls += 1

    timer = tasks.call_every("timer without a pause", pause_s, work)
    await wait_for(lambda: calls >= 3)
    timer.cancel()
    assert count_of("timer without a pause") == 1


async def test_a_timer_may_cancel_itself() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        timer.cancel()

    timer = tasks.call_every("timer that ends", lambda: 0.001, work)
    await wait_for(lambda: calls == 1)
    await asyncio.sleep(0.02)
    assert calls == 1


def test_a_thread_reports_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Exception] = []

    def work() -> None:
        raise OSError("disk")

    thread = tasks.start_thread("failing thread", work, on_failure=heard.append)
    thread.join(30)
    assert [str(error) for error in heard] == ["disk"]
    assert count_of("failing thread") == 1
    assert len(lines_of(caplog, "failing thread")) == 1
    assert threading.current_thread() is not thread


async def test_errors_in_callbacks_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def callback() -> None:
        raise ZeroDivisionError("in a callback")

    before = count_of("event loop callback")
    loop = asyncio.get_running_loop()
    tasks.report_unhandled_errors(loop)
    loop.call_soon(callback)
    await wait_for(lambda: count_of("event loop callback") == before + 1)
    [line] = lines_of(caplog, "event loop callback")
    assert "callback" in line.getMessage()
    loop.set_exception_handler(None)


async def test_failures_are_injected_by_name() -> None:
    starts = 0
    calls = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await asyncio.Event().wait()

    def call() -> None:
        nonlocal calls
        calls += 1

    task = tasks.keep_running("to fail", work, backoff=QUICK)
    timer = tasks.call_every("to fail", lambda: 0.001, call)
    await wait_for(lambda: starts == 1)
    assert tasks.inject_failure("to fail") == 2
    await wait_for(lambda: starts == 2 and count_of("to fail") == 2)
    before = calls
    await wait_for(lambda: calls > before)
    timer.cancel()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert tasks.inject_failure("to fail") == 0


def test_the_same_error_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 1000.0
    log = tasks.FailureLog(lambda: now_s)
    for _ in range(40):
        log.record("fetcher", ValueError("a"), "it is restarted")
        now_s += 1
    log.record("fetcher", TypeError("another kind"), "it is restarted")
    now_s += 30
    log.record("fetcher", ValueError("a"), "it is restarted")
    said = [line.getMessage().partition("unexpected error: ")[2] for line in caplog.records]
    assert said == [
        "ValueError: a; it is restarted",
        "TypeError: another kind; it is restarted",
        "ValueError: a (39 more since the last report); it is restarted",
    ]
    [count] = log.counts()
    assert (count.name, count.count, count.last_error) == ("fetcher", 42, "ValueError: a")
