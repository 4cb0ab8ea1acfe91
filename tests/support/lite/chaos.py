"""A cluster in a storm, under load, and two judges of what it kept.

The first judge is the audit of this project: a producer and a consumer write ledgers, the log is
scanned, and everything is judged together. The second is `scripts/second_judge.py`, which has
nothing of ours. Both producers are idempotent and wait for acknowledgements by all in-sync
replicas, however long it takes: at the end nothing may be missing, twice, or out of order.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import ShoalError, SystemFailure, UsageError
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.workers.processes import ProcessPlacement
from shoal.workers.specs import Role, WorkerSpec
from shoal.workers.supervision import WorkerPhase, WorkerTimeouts
from shoal.workers.supervisor import RunState, WorkerSupervisor
from shoal.workload.record.ledger import close_run, create_run
from shoal.workload.specs import (
    ConsumerSpec,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)
from support.lite.clusters import eventually, in_sync, replicas_are_equal
from support.lite.storm import Act, Storm

BROKERS = 3
CONTROLLERS = (101, 102, 103)
PARTITIONS = 3
AUDITED, SECOND = "audited", "second"
RATE_PER_S = 300
# Disks that each profile promises to survive the loss of, at three replicas.
DISKS = {"strict": 2, "default": 1, "available": 0}
PROPERTIES = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1500",
}
PATIENCE_S = 180.0
_JUDGE = Path(__file__).parents[3] / "scripts" / "second_judge.py"
_LONG_MS = 3_600_000


@dataclass
class Outcome:
    """What was done, and what both judges said."""

    profile: str
    seed: int
    seconds: float
    acts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    first: Result | None = None
    second: dict[str, Any] = field(default_factory=dict)
    are_replicas_equal: bool = False
    # Why the run did not come to its end.
    failure: str = ""

    def problems(self) -> list[str]:
        """Everything that should not be."""
        found = [self.failure] if self.failure else []
        if self.first is None or self.first.verdict is not Verdict.PROVEN:
            found.append(f"audit: {None if self.first is None else self.first.sentence}")
        found += [
            f"second judge: {name} {self.second.get(name)}"
            for name in ("missing", "twice", "disordered", "unsent", "failed")
            if self.second.get(name) not in (0, [])
        ]
        if not self.second.get("acked"):
            found.append("second judge: nothing was acknowledged")
        if not self.are_replicas_equal:
            found.append("replicas differ")
        return found


class Chaos:
    """One run: a cluster, its load and its storm."""

    def __init__(self, profile: str, seed: int, folder: Path, *, has_quorum: bool = False) -> None:
        """With `has_quorum` there are three controllers, which are harmed like brokers."""
        self.cluster = LiteCluster(
            BROKERS,
            folder / "cluster",
            profile=profile,
            properties=PROPERTIES,
            controllers=len(CONTROLLERS) if has_quorum else None,
        )
        self.outcome = Outcome(profile, seed, 0.0)
        self._folder = folder
        self._run_dir = folder / "run"
        self._starting: dict[int, threading.Thread] = {}
        self._say: Callable[[str], None] = lambda _: None
        self._storm = Storm(
            Random(seed),
            tuple(range(1, BROKERS + 1)),
            PARTITIONS,
            DISKS[profile],
            CONTROLLERS if has_quorum else (),
        )

    def run(self, seconds: float, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Everything, from an empty folder to the judgement."""
        self._say = say
        self.outcome.seconds = seconds
        with self.cluster:
            self._create_topics()
            with self._workers(seconds) as workers, self._second_judge() as judge:
                self._weather(seconds)
                self._calm()
                self._await_recovery()
                self._finish(workers)
                assert judge.stdin is not None
                judge.stdin.close()
                assert judge.stdout is not None
                self.outcome.second = json.loads(judge.stdout.readline() or "{}")
            self.outcome.are_replicas_equal = self._are_replicas_equal()
        close_run(self._run_dir, "finished")
        self.outcome.first = audit(open_ledger([self._run_dir]))
        return self.outcome

    # The storm

    def _weather(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._storm.pause_s())
            self._note_recoveries()
            self._do(self._storm.next())

    def _do(self, act: Act) -> None:
        self._say(str(act))
        self.outcome.acts[act.what] += 1
        try:
            if act.what == "crash":
                self.cluster.crash()
                self.cluster.start()
            elif act.what == "wipe":
                self._wipe(*act.values)
            elif act.what == "restart":
                self._restart(*act.values)
            elif act.what in {"move_leader", "shrink_in_sync"}:
                getattr(self.cluster, act.what)(AUDITED, *act.values)
            elif act.what == "cut_link":
                self.cluster.cut_link(*act.values[:2], one_way=bool(act.values[2]))
            else:
                getattr(self.cluster, act.what)(*act.values)
        except (SystemFailure, UsageError) as error:
            # A leader that cannot be moved, say. Whatever cannot be started is a failure.
            if act.what in {"crash", "kill", "stop_node"}:
                raise
            self._say(f"  refused: {error}")
            self.outcome.refused[act.what] += 1

    def _wipe(self, broker: int) -> None:
        self.cluster.kill(broker)
        if broker in self._starting:
            self._starting.pop(broker).join()
            self.cluster.kill(broker)
        shutil.rmtree(self.cluster.log_dirs()[broker], ignore_errors=True)
        self._restart(broker)

    def _restart(self, node: int) -> None:
        """Start a node, and do not wait: one that is cut off does not serve before it is healed."""
        self._starting = {key: one for key, one in self._starting.items() if one.is_alive()}
        if node not in self._starting:
            thread = threading.Thread(target=self._start_node, args=(node,))
            self._starting[node] = thread
            thread.start()

    def _start_node(self, node: int) -> None:
        # Killed before it served, or the supervisor was: the storm goes on.
        with suppress(ShoalError):
            self.cluster.restart(node)

    def _calm(self) -> None:
        """Mend everything; from here on nothing may fail."""
        for act in self._storm.calm():
            self._do(act)
        for thread in self._starting.values():
            thread.join()
        for node in (*self.cluster.controllers(), *self.cluster.status()):
            if node.state == "dead":
                self.cluster.restart(node.id)

    def _note_recoveries(self) -> None:
        """Brokers that lost their disk, and have everything again."""
        if self._storm.empty:
            try:
                complete = self._complete()
            except Exception:  # noqa: BLE001 - nobody may be there to be asked
                return
            self._storm.empty -= complete

    def _complete(self) -> set[int]:
        """The brokers that are in sync for everything."""
        topics = [(topic, index) for topic in (AUDITED, SECOND) for index in range(PARTITIONS)]
        return set.intersection(*(in_sync(self.cluster, *one) for one in topics))

    def _await_recovery(self) -> None:
        eventually(lambda: len(self._complete()) == BROKERS, PATIENCE_S)

    def _are_replicas_equal(self) -> bool:
        topics = [(topic, index) for topic in (AUDITED, SECOND) for index in range(PARTITIONS)]
        try:
            eventually(lambda: all(replicas_are_equal(self.cluster, *one) for one in topics))
        except AssertionError:
            return False
        return True

    # The load

    def _create_topics(self) -> None:
        async def create() -> None:
            settings = {"retention.ms": "-1", "retention.bytes": "-1"}
            topics = [NewTopic(name, PARTITIONS, BROKERS, settings) for name in (AUDITED, SECOND)]
            async with Client({"bootstrap.servers": self.cluster.bootstrap}) as client:
                await client.admin.create_topics(topics)

        asyncio.run(create())

    @contextmanager
    def _second_judge(self) -> Iterator["subprocess.Popen[str]"]:
        command = [sys.executable, str(_JUDGE), self.cluster.bootstrap, SECOND, str(PARTITIONS)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as judge:
            try:
                yield judge
                judge.wait(PATIENCE_S)
            finally:
                judge.kill()

    @contextmanager
    def _workers(self, seconds: float) -> Iterator[WorkerSupervisor]:
        run = "chaos"
        starts = tuple(StartingPoint(AUDITED, index, 0) for index in range(PARTITIONS))
        consumer = ConsumerSpec(
            run, "consumers", "consumer-1", (AUDITED,), starts, cluster="source"
        )
        producer = ProducerSpec(
            run,
            "producer-1",
            (ProducedTopic(AUDITED, PARTITIONS, PARTITIONS),),
            rate_per_s=RATE_PER_S,
            messages=int(RATE_PER_S * seconds),
            size_bytes=200,
            delivery_timeout_ms=_LONG_MS,
            request_timeout_ms=5_000,
            drain_timeout_s=PATIENCE_S,
        )
        self._scan = ScanSpec(run, "source", (AUDITED,), starts)
        create_run(self._run_dir, _description(run))
        placement = ProcessPlacement()
        limits = WorkerTimeouts(start_s=PATIENCE_S)
        with WorkerSupervisor(
            run, self._run_dir, placement, groups=["consumers"], limits=limits
        ) as workers:
            workers.launch(
                [
                    self._worker("consumer-1", Role.CONSUME, consumer.to_json()),
                    self._worker("producer-1", Role.PRODUCE, producer.to_json()),
                ]
            )
            assert workers.wait(_has_begun, PATIENCE_S), workers.state()
            assert not workers.state().find_failed(), workers.state()
            workers.start_at(time.time_ns() // 1000)
            yield workers

    def _worker(self, name: str, role: Role, spec: dict[str, Any]) -> WorkerSpec:
        # However long nobody answers, it is no reason to give up.
        client = {
            "bootstrap.servers": self.cluster.bootstrap,
            "default.api.timeout.ms": str(_LONG_MS),
        }
        return WorkerSpec(name, role, {"client": client, "spec": spec})

    def _finish(self, workers: WorkerSupervisor) -> None:
        """Wait for the producer and its markers, end the consumer, scan the log."""
        assert workers.wait(_has_ended("producer-1"), PATIENCE_S), workers.state()
        workers.stop_workers(["consumer-1"])
        assert workers.wait(_has_ended("consumer-1"), PATIENCE_S), workers.state()
        workers.launch([self._worker("scan-source", Role.SCAN, self._scan.to_json())])
        assert workers.wait(_has_ended("scan-source"), PATIENCE_S), workers.state()
        assert not workers.state().find_failed(), workers.state()


def _description(run: str) -> dict[str, Any]:
    return {
        "run": run,
        "promises": {
            "delivery": "exactly_once",
            "order": True,
            "fidelity": ["key", "headers", "payload"],
        },
        "topics": {AUDITED: {"lanes": PARTITIONS}},
        "clusters": {"source": {}},
        "groups": ["consumers"],
        "warm_up_us": 0,
    }


def _has_begun(state: RunState) -> bool:
    return all(
        worker.phase in {WorkerPhase.RUNNING, WorkerPhase.ENDED}
        for worker in state.workers.values()
    )


def _has_ended(name: str) -> Callable[[RunState], bool]:
    return lambda state: state.workers[name].phase is WorkerPhase.ENDED
