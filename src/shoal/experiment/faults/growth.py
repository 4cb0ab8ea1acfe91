"""Adds partitions or a second topic during a run: does the mirror pick them up?

Rules:
- New partitions and topics are created on the source only. Their producers and consumers start
  once the mirror has created them on the target, so the run proves what happens from then on.
- The time from creation to arrival is in the commit log, like a fault, if the run has no other
  faults.
"""

import asyncio
import time
from dataclasses import replace
from typing import Final

from shoal.client.client import Client
from shoal.experiment import plan
from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ExperimentSpec
from shoal.experiment.topics import create_growth, topics_on
from shoal.model.errors import SystemFailure
from shoal.workers.supervisor import WorkerSupervisor

ARRIVAL_LIMIT_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.5
_LEAD_TIME_S: Final = 5.0  # for the new workers to get ready


class Growth:
    """The growth of a run's topics; `step` is called repeatedly while messages are sent."""

    def __init__(self, spec: ExperimentSpec, addresses: Addresses, *, run: str) -> None:
        self._spec = spec
        self._new = plan.growth_spec(spec)
        self._addresses = addresses
        self._run = run
        self._created_s: float | None = None
        self._looked_s = 0.0
        self.producers: list[str] = []
        self.consumers: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to grow, or it has grown and its workers are launched."""
        return self._new is None or bool(self.producers)

    def step(self, elapsed_s: float, workers: WorkerSupervisor) -> None:
        """Do what is due; `elapsed_s` counts from the first message."""
        new = self._new
        if new is None or self.is_over or elapsed_s < (self._spec.topics.grow_after_s or 0):
            return
        now = time.monotonic()
        if self._created_s is None:
            asyncio.run(
                create_growth(new, self._addresses, is_growth=bool(self._spec.topics.grow_to))
            )
            self._created_s = now
            self._log_phase(workers, "begin")
        elif now - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now
            if asyncio.run(self._has_arrived(new)):
                self._log_phase(workers, "end")
                self._launch(new, workers)
            elif now - self._created_s > ARRIVAL_LIMIT_S:
                raise SystemFailure(
                    f"the mirror did not create {new.topics.name} with {new.topics.partitions} "
                    f"partitions on the target within {ARRIVAL_LIMIT_S:.0f} s"
                )

    def _launch(self, new: ExperimentSpec, workers: WorkerSupervisor) -> None:
        # They start a schedule of their own, or their messages would count as late from the first.
        start_us = time.time_ns() // 1000 + int(_LEAD_TIME_S * 1e6)
        settings = {**new.producers.settings, "start_us": start_us}
        new = replace(new, producers=replace(new.producers, settings=settings))
        workers.launch(plan.workload_workers(self._run, new, self._addresses, {}))
        self.producers = plan.producer_names(new)
        self.consumers = plan.consumer_names(new)

    async def _has_arrived(self, new: ExperimentSpec) -> bool:
        cluster = self._addresses.clusters[-1]
        (name,) = topics_on(new, cluster)
        async with Client(self._addresses.client_of(cluster)) as client:
            seen = await client.metadata([name])
        logs = seen.partitions_of(name)
        is_led = all(seen.leader(log) is not None for log in logs)
        return is_led and len(logs) >= new.topics.target_partitions

    def _log_phase(self, workers: WorkerSupervisor, phase: str) -> None:
        if self._spec.faults:
            return
        name = "new_partitions" if self._spec.topics.grow_to else "new_topic"
        line = {"kind": "fault", "fault": 1, "phase": phase, "name": name, "target": "source"}
        workers.commit({**line, "detail": {}})
