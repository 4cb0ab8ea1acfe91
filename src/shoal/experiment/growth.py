"""A topic that grows during a run, or a second one: does the mirror take it in?

Rules:
- What is new is made on the source alone. Only when it has arrived at the target, by whoever
  copies, do its producers and consumers begin: what they prove is what came after.
- How long that took stands in the commit log like a fault, from the making to the arrival, if
  the run has no faults besides.
"""

import asyncio
import time
from dataclasses import replace
from typing import Final

from shoal.client.client import Client
from shoal.experiment import plan
from shoal.experiment.plan import Addresses
from shoal.experiment.spec import ExperimentSpec
from shoal.experiment.topics import create, topics_on
from shoal.model.errors import SystemFailure
from shoal.workers.supervisor import Supervisor

ARRIVAL_LIMIT_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.5
_LEAD_TIME_S: Final = 5.0  # in which workers get ready


class Growth:
    """Asked again and again while messages are on their way."""

    def __init__(self, spec: ExperimentSpec, addresses: Addresses, *, run: str) -> None:
        self._spec = spec
        self._new = plan.later(spec)
        self._addresses = addresses
        self._run = run
        self._made_s: float | None = None
        self._looked_s = 0.0
        self.producers: list[str] = []
        self.consumers: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether everything that was to grow has grown, and its workers are there."""
        return self._new is None or bool(self.producers)

    def step(self, elapsed_s: float, workers: Supervisor) -> None:
        """Does what is due; `elapsed_s` counts from the first message."""
        new = self._new
        if new is None or self.is_over or elapsed_s < (self._spec.topics.grow_after_s or 0):
            return
        now = time.monotonic()
        if self._made_s is None:
            asyncio.run(create(new, self._addresses, is_growth=bool(self._spec.topics.grow_to)))
            self._made_s = now
            self._tell(workers, "begin")
        elif now - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now
            if asyncio.run(self._is_there(new)):
                self._tell(workers, "end")
                self._launch(new, workers)
            elif now - self._made_s > ARRIVAL_LIMIT_S:
                raise SystemFailure(
                    f"the mirror did not take in {new.topics.name} with "
                    f"{new.topics.partitions} partitions within {ARRIVAL_LIMIT_S:.0f} s"
                )

    def _launch(self, new: ExperimentSpec, workers: Supervisor) -> None:
        # Their schedule is their own: what is new cannot be late for the start of the run.
        start_us = time.time_ns() // 1000 + int(_LEAD_TIME_S * 1e6)
        settings = {**new.producers.settings, "start_us": start_us}
        new = replace(new, producers=replace(new.producers, settings=settings))
        workers.launch(plan.workload_workers(self._run, new, self._addresses, {}))
        self.producers = plan.producer_names(new)
        self.consumers = plan.consumer_names(new)

    async def _is_there(self, new: ExperimentSpec) -> bool:
        cluster = self._addresses.clusters[-1]
        (name,) = topics_on(new, cluster)
        async with Client(self._addresses.client_of(cluster)) as client:
            seen = await client.metadata([name])
        logs = seen.partitions_of(name)
        is_led = all(seen.leader(log) is not None for log in logs)
        return is_led and len(logs) >= new.topics.target_partitions

    def _tell(self, workers: Supervisor, phase: str) -> None:
        if self._spec.faults:
            return
        name = "new_partitions" if self._spec.topics.grow_to else "new_topic"
        line = {"kind": "fault", "fault": 1, "phase": phase, "name": name, "target": "source"}
        workers.commit({**line, "detail": {}})
