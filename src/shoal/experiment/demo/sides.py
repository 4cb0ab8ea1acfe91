"""The first part of the demo: acks=1 and acks=all side by side, while their leaders die.

Each side is a run with a cluster and a thread of its own; one button hits both.
What is lost is found in the ledgers while the run still goes. `snapshot` is what a page shows.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.audit.page.life import MessageName, message_life
from shoal.audit.page.missing import MissingMessages, find_missing
from shoal.experiment import plan
from shoal.experiment.demo.specs import ACKS, ACKS_LONGEST_S, ACKS_RATE_PER_S, acks_spec
from shoal.experiment.faults.fault_injection import FaultInjection
from shoal.experiment.faults.fault_targets import LiteNodeLinks
from shoal.experiment.faults.leader_loss import Button, LeaderLoss
from shoal.experiment.faults.running_clusters import RunningClusters, start_clusters
from shoal.experiment.run import RunProgress, run_workload
from shoal.experiment.spec import ExperimentSpec
from shoal.faults.network import ProxyNetwork
from shoal.faults.zones import Zones
from shoal.model.errors import ShoalError
from shoal.model.result import Result
from shoal.runtime.tasks import start_thread
from shoal.systems.lite import LiteSystem

# How long messages are sent after the leader's death.
GOES_ON_S: Final = 3.0
LOOK_EVERY_S: Final = 1.0
SAMPLE_EVERY_S: Final = 0.5
_SAMPLES: Final = 60
_MOST_SEQUENCES: Final = int(ACKS_LONGEST_S * ACKS_RATE_PER_S)
_NOTHING: Final = MissingMessages(0, ())

Json = dict[str, Any]


@dataclass
class Side:
    """One of the two runs."""

    acks: str
    spec: ExperimentSpec
    run_dir: Path
    running: RunningClusters
    hooks: LeaderLoss
    progress: RunProgress
    samples: deque[tuple[float, int]]  # time, acknowledged
    missing: MissingMessages = _NOTHING
    result: Result | None = None
    error: Exception | None = None
    is_sent: bool = False

    def watch(self, progress: RunProgress) -> None:
        if progress.total:
            self.progress = progress
            now_s = time.monotonic()
            if not self.samples or now_s - self.samples[-1][0] >= SAMPLE_EVERY_S:
                self.samples.append((now_s, progress.acked))

    def look_for_losses(self) -> None:
        """Find what is lost so far; the ledgers may not be complete yet."""
        if self.hooks.killed_us:
            with suppress(ShoalError, OSError):
                self.missing = find_missing(
                    [self.run_dir], self.hooks.killed_us, most_sequences=_MOST_SEQUENCES
                )

    def life_of(self, name: MessageName) -> str:
        return message_life([self.run_dir], name).sentence

    def snapshot(self) -> Json:
        pairs = zip(self.samples, list(self.samples)[1:], strict=False)
        return {
            "acks": self.acks,
            "run": self.run_dir.name,
            "sent": self.progress.sent,
            "acknowledged": self.progress.acked,
            "received": self.progress.received,
            "rates": [(after - before) / (t - s) for (s, before), (t, after) in pairs],
            "step": self.hooks.step,
            "lost": self.missing.count,
            "examples": [
                {"topic": n.topic, "producer": n.producer, "lane": n.lane, "sequence": n.sequence}
                for n in self.missing.examples
            ],
            "is_sent": self.is_sent,
            "verdict": None if self.result is None else self.result.verdict.value,
            "sentence": "" if self.result is None else self.result.sentence,
        }


class AcksDemo:
    """Both sides, and their button. Made by `start_sides`."""

    def __init__(self, button: Button, sides: list[Side]) -> None:
        self.button = button
        self.sides = sides

    def snapshot(self) -> Json:
        return {
            "presses_in_s": self.button.presses_in_s,
            "is_pressed": self.button.is_pressed,
            "sides": [side.snapshot() for side in self.sides],
        }

    def run(self, report: Callable[[str], None]) -> None:
        """Run both sides to their ends; `report` gets what happens, as sentences."""
        threads = [
            start_thread(f"demo acks={side.acks}", lambda side=side: _run(side), on_failure=_ignore)  # type: ignore[misc]
            for side in self.sides
        ]
        reported: set[str] = set()
        try:
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(LOOK_EVERY_S / len(threads))
                for sentence in self._news(reported):
                    report(sentence)
                for side in self.sides:
                    side.look_for_losses()
        finally:
            for side in self.sides:
                side.hooks.stop()
            for thread in threads:
                thread.join()
        for side in self.sides:
            if side.error is not None:
                raise side.error
            side.look_for_losses()
        for sentence in self._news(reported):
            report(sentence)

    def _news(self, reported: set[str]) -> Iterator[str]:
        """What happened since the last call: each sentence once."""
        sentences = []
        if self.button.is_pressed:
            sentences.append("the followers are cut off from the leader, in both clusters")
        if all(side.hooks.killed_us for side in self.sides):
            sentences.append("the leaders are killed; a follower of each takes over")
        for sentence in sentences:
            if sentence not in reported:
                reported.add(sentence)
                yield sentence


def _run(side: Side) -> None:
    try:
        run_workload(
            side.spec,
            addresses=side.running.addresses,
            run_dir=side.run_dir,
            watch=side.watch,
            faults=side.hooks,
        )
    except Exception as error:  # noqa: BLE001 - raised again by `AcksDemo.run`
        side.error = error
    finally:
        side.is_sent = True


def _ignore(_error: Exception) -> None:
    """`_run` keeps its error."""


@contextmanager
def start_sides(new_run_dir: Callable[[str], Path], *, press_after_s: float) -> Iterator[AcksDemo]:
    """Start both clusters; stop them afterwards. `new_run_dir` gets the name of an experiment."""
    specs = {acks: acks_spec(acks) for acks in ACKS}
    button = Button(len(specs), press_after_s)
    with ExitStack() as stack:
        sides = []
        for acks, spec in specs.items():
            running = stack.enter_context(start_clusters(spec))
            # No client of the run goes through it: only the links between brokers are cut.
            network = stack.enter_context(ProxyNetwork(Zones()))
            for role, cluster in running.clusters.items():
                if isinstance(cluster, LiteSystem):
                    network.attach_nodes(role, LiteNodeLinks(cluster))
            hooks = LeaderLoss(
                FaultInjection(spec, running, network, is_on_demand=True),
                button,
                plan.producer_names(spec),
                asks=acks == "1",
                goes_on_s=GOES_ON_S,
            )
            run_dir = new_run_dir(spec.name)
            progress, samples = RunProgress("starting"), deque[tuple[float, int]](maxlen=_SAMPLES)
            sides.append(Side(acks, spec, run_dir, running, hooks, progress, samples))
        yield AcksDemo(button, sides)
