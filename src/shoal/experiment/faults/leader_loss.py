"""Cuts the followers off from the leader when a button is pressed, and kills the leader.

Rules:
- Several runs share one button; each hits its own cluster at the same times.
- The leader is killed once it alone has enough acknowledged messages, so that a producer that does
  not wait for the followers always loses some. The runs that are `asked` decide when that is.
- The links are healed after the kill: one of the followers becomes the leader, and the run
  continues for a while, so that messages after the loss arrive.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from shoal.experiment.faults.fault_injection import FaultInjection
from shoal.faults.timeline import Fault, FaultSchedule
from shoal.model.errors import SystemFailure
from shoal.net.link_faults import LinkEffect
from shoal.runtime.tasks import start_thread
from shoal.systems.mirrors import Mirror
from shoal.workers.supervisor import WorkerSupervisor

AT_RISK: Final = 200
REPORTS_LAG_S: Final = 0.5
# Well below `replica.lag.time.max.ms` (30 s): the followers count as in sync until the kill.
LONGEST_CUT_S: Final = 15.0
_POLL_S: Final = 0.05
_NOW: Final = FaultSchedule(0.0)
_LEADER: Final = "source/leader"
CUT: Final = Fault(
    "cut",
    _NOW,
    sources=("source/followers",),
    targets=(_LEADER,),
    effect=LinkEffect(is_cut=True),
)
KILL: Final = Fault("kill", _NOW, target=_LEADER)


class Button:
    """Presses itself after a time; the time counts from when all runs are ready."""

    def __init__(self, runs: int, press_after_s: float) -> None:
        self._lock = threading.Lock()
        self._waiting = runs
        self._press_after_s = press_after_s
        self._presses_at_s: float | None = None
        self._is_pressed = threading.Event()
        self.is_enough = threading.Event()

    @property
    def is_pressed(self) -> bool:
        return self._is_pressed.is_set()

    @property
    def presses_in_s(self) -> float | None:
        """None before all runs are ready, and after it was pressed."""
        at_s = self._presses_at_s
        return None if at_s is None or self.is_pressed else max(0.0, at_s - time.monotonic())

    def add_ready(self) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._presses_at_s = time.monotonic() + self._press_after_s

    def press(self) -> None:
        """Does nothing before all runs are ready, and if it was pressed."""
        if self._presses_at_s is not None:
            self._is_pressed.set()

    def wait(self, is_over: threading.Event) -> bool:
        """Wait for a press; False if the run is over first."""
        while not is_over.is_set():
            if self._is_pressed.wait(_POLL_S):
                return True
            if self.presses_in_s == 0.0:
                self.press()
        return False


class LeaderLoss:
    """The `FaultHooks` of one run. `asks` is whether the run decides when it is enough."""

    def __init__(
        self,
        injection: FaultInjection,
        button: Button,
        producers: Sequence[str],
        *,
        asks: bool,
        goes_on_s: float,
    ) -> None:
        self._injection = injection
        self._producers = producers
        self._button = button
        self._asks = asks
        self._goes_on_s = goes_on_s
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self.step = "waiting"
        self.killed_us = 0

    def begin(self, started_us: int, workers: WorkerSupervisor, mirror: Mirror | None) -> None:
        self._injection.begin(started_us, workers, mirror)

        def keep(error: Exception) -> None:
            self._failure = error

        self._thread = start_thread(
            "leader-loss", lambda: self._strike(workers, started_us), on_failure=keep
        )

    def stop(self) -> None:
        """End the run early: nothing more is injected, and producers send nothing new."""
        self._is_over.set()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._injection.end()

    def _strike(self, workers: WorkerSupervisor, started_us: int) -> None:
        self._is_over.wait(max(0.0, started_us / 1e6 - time.time()))
        self._button.add_ready()
        if self._button.wait(self._is_over):
            self._hit_leader(workers)
        self.step = "over"
        workers.finish(self._producers)

    def _hit_leader(self, workers: WorkerSupervisor) -> None:
        self.step = "cutting"
        heal = self._injection.inject(CUT)
        self.step = "cut"
        self._wait_until_enough(workers)
        self.step = "killing"
        self._injection.inject(KILL)
        self.killed_us = time.time_ns() // 1000
        self.step = "killed"
        heal()
        if failures := self._injection.failures:
            raise SystemFailure("; ".join(failures))
        self._is_over.wait(self._goes_on_s)

    def _wait_until_enough(self, workers: WorkerSupervisor) -> None:
        deadline_s = time.monotonic() + LONGEST_CUT_S
        # The first reports after the cut are about messages from before it.
        self._is_over.wait(REPORTS_LAG_S)
        before = _count_acknowledged(workers)
        while time.monotonic() < deadline_s and not self._is_over.is_set():
            if self._asks and _count_acknowledged(workers) - before >= AT_RISK:
                self._button.is_enough.set()
            if self._button.is_enough.wait(_POLL_S):
                return
        self._button.is_enough.set()


def _count_acknowledged(workers: WorkerSupervisor) -> int:
    return sum(int(worker.progress.get("ok", 0)) for worker in workers.state().workers.values())
