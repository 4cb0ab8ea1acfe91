"""What Ctrl-C and SIGTERM do in a command that runs for long.

Rules:
- The first signal is answered at once: one sentence says what happens now, by the phase that the
  command is in. Most phases end by `KeyboardInterrupt`; one that drains counts the signal instead,
  and looks at the count. A `KeyboardInterrupt` could be raised in any line, and some code swallows
  it.
- The second signal ends the process within `END_WITHIN_S`, even if its clean-up hangs: what it has
  started ends with it. A third one ends it at once.
- Without `answer_signals` only `drain_first` changes what Ctrl-C does.
- Everything happens in the main thread; in any other these functions do nothing.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
END_WITHIN_S: Final = 1.5
STOPPING: Final = "stopping; again to end at once"


@dataclass
class Interrupts:
    """The signals so far, and what the command does now."""

    say: Callable[[str], None]
    exit_code: int | None  # None: no signal ends the process
    count: int = 0
    sentence: str = STOPPING
    is_draining: bool = field(default=False)

    def on_signal(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.count == 1:
            self.say(f"{signal.Signals(number).name}: {self.sentence}")
            if not self.is_draining:
                raise KeyboardInterrupt
            return
        if self.count > 2:
            self.end()
        self.say("ending now")
        signal.signal(signal.SIGALRM, self.end)
        signal.setitimer(signal.ITIMER_REAL, END_WITHIN_S if self.exit_code is not None else 0)
        raise KeyboardInterrupt

    def end(self, *_signal: object) -> None:
        if self.exit_code is None:
            raise KeyboardInterrupt
        os._exit(self.exit_code)


_installed: list[Interrupts] = []


def _keep_exit_code() -> None:
    """Ignore further signals while the interpreter ends: it resets handlers before its end."""
    for number in SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Interrupts):
            signal.signal(number, signal.SIG_IGN)


# Registered at import, so that nearly all other clean-up runs before it.
atexit.register(_keep_exit_code)


@contextmanager
def answer_signals(say: Callable[[str], None], exit_code: int) -> Iterator[None]:
    """Answer SIGINT and SIGTERM in this block; `say` must be safe in a signal handler."""
    interrupts = Interrupts(say, exit_code)
    try:
        with _install(interrupts, SIGNALS):
            yield
    finally:
        if interrupts.count and _is_main_thread():
            # The command ends now; a further signal must not change its exit code.
            for number in SIGNALS:
                signal.signal(number, interrupts.end)


@contextmanager
def explain_interrupt(sentence: str) -> Iterator[None]:
    """Let the first signal in this block say this sentence and raise `KeyboardInterrupt`."""
    with _set_phase(sentence, is_draining=False):
        yield


@contextmanager
def drain_first(sentence: str) -> Iterator[Callable[[], bool]]:
    """Let the first signal in this block say this sentence; yields whether there was one."""
    if _installed or not _is_main_thread():
        with _set_phase(sentence, is_draining=True):
            yield lambda: bool(_installed and _installed[-1].count)
        return
    alone = Interrupts(lambda _text: None, None, is_draining=True)
    with _install(alone, SIGNALS[:1]):
        yield lambda: bool(alone.count)


@contextmanager
def _install(interrupts: Interrupts, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    if not _is_main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupts.on_signal) for number in numbers}
    _installed.append(interrupts)
    try:
        yield
    finally:
        _installed.pop()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _set_phase(sentence: str, *, is_draining: bool) -> Iterator[None]:
    if not _installed or not _is_main_thread():
        yield
        return
    now = _installed[-1]
    before = now.sentence, now.is_draining
    now.sentence, now.is_draining = sentence, is_draining
    try:
        yield
    finally:
        now.sentence, now.is_draining = before


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
