"""Plays a run in real time into a run folder, by the writers of real runs, with planted defects.

Two producers (`q` writes in transactions), one log for each, one group of two consumers, no mirror.
Each second has new messages; some arrive seconds late, transactions abort, and the partitions move
between the consumers, which then deliver some messages again. None of that is a finding. What is
planted is reported to the caller with the time at which its last row was committed.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shoal.experiment.runs import driver_identity
from shoal.model.findings import Finding
from shoal.model.ledger import ABORTED, COMMITTED, OK
from shoal.workload.record.ledger import CommitLog, close_run, create_run
from shoal.workload.record.recorder import Recorder

PER_SECOND = 100
LANES = {"p": 0, "q": 1}
REBALANCE_EVERY = 20
LATE_S = 8
# By planting: the findings whose counts it raises by one.
EXPECTED: dict[str, tuple[Finding, ...]] = {
    "copy": (Finding.DUPLICATE_SOURCE,),
    "wrong offset": (Finding.INCONSISTENT_OFFSET, Finding.DUPLICATE_SOURCE),
    "aborted": (Finding.ABORTED_READ,),
    "reuse": (Finding.REUSED_SEQUENCE,),
    "back": (Finding.NON_MONOTONIC_POLL,),
    "unreadable": (Finding.UNREADABLE,),
    "too early": (Finding.UNCOMMITTED_READ,),
    "broken": (Finding.CORRUPTED,),
}


@dataclass
class Planted:
    """What was planted, and when the last of its rows was committed."""

    planting: str
    committed_us: int
    # The counts that are certain from then on.
    counts: dict[str, int]


@dataclass
class LiveRun:
    """One run; `play` writes it."""

    run_dir: Path
    seconds: int
    plantings: dict[int, str]  # by the second in which they happen
    random: Random = field(default_factory=lambda: Random(7))
    counts: dict[str, int] = field(default_factory=dict)
    late: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    sequences: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    offsets: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    assignment: int = 1
    transaction: int = 0
    recent: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    # Of messages whose answer names another offset: where they are, by sequence.
    places: dict[int, int] = field(default_factory=dict)
    is_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, report: Callable[[Planted], None]) -> None:
        plan = {
            "run": self.run_dir.name,
            "state": "running",
            "started_us": _now_us(),
            "promises": {"delivery": "at_least_once", "order": True},
            "groups": ["g"],
            "isolation": "read_committed",
            "acks": "all",
            "topics": {"t": {"partitions": 2, "lanes": 2}},
            "driver": driver_identity(),
        }
        create_run(self.run_dir, plan)
        with CommitLog(self.run_dir) as log:
            self._producer = Recorder(
                self.run_dir, worker="producer", epoch=1, commit=log.append_in_thread
            )
            self._consumer = Recorder(
                self.run_dir, worker="consumer", epoch=1, commit=log.append_in_thread
            )
            for worker in ("producer", "consumer"):
                log.append({"kind": "lease", "worker": worker, "epoch": 1, "host": "h"})
            self.is_begun.set()
            began_s = time.monotonic()
            for second in range(self.seconds):
                planting = self.plantings.get(second)
                await self._play_second(second, planting)
                if planting is not None:
                    for finding in EXPECTED[planting]:
                        self.counts[finding.value] = self.counts.get(finding.value, 0) + 1
                    report(Planted(planting, _now_us(), dict(self.counts)))
                wait_s = began_s + second + 1 - time.monotonic()
                await asyncio.sleep(max(wait_s, 0))
            for _, row in self.late:
                self._consumer.append("receipts", **row)
            await self._consumer.seal()
            for worker in ("producer", "consumer"):
                log.append({"kind": "ended", "worker": worker, "epoch": 1, "reason": "finished"})
        close_run(self.run_dir, "finished")

    async def _reserve(self, producer: str, until: int) -> None:
        await self._producer.reserve(
            producer, "t", lanes=[LANES[producer]], until=until, incarnation=_incarnation(producer)
        )

    async def _play_second(self, second: int, planting: str | None) -> None:
        for producer in ("p", "q"):
            await self._reserve(producer, (second + 2) * PER_SECOND)
        if second % REBALANCE_EVERY == REBALANCE_EVERY - 1:
            self._rebalance()
        rows = [self._send("p") for _ in range(PER_SECOND)]
        self._plant_sends(planting, rows)
        for row in rows:
            self._producer.append("attempts", **row)
            self._deliver(row)
        for _ in range(PER_SECOND // 10):
            self._send_transaction(is_aborted=self.random.random() < 0.2)
        if planting in {"aborted", "too early"}:
            self._send_transaction(is_aborted=planting == "aborted", planting=planting)
        self._plant_receipts(planting, rows)
        due = [row for at, row in self.late if at <= second]
        self.late = [each for each in self.late if each[0] > second]
        for row in due:
            self._consumer.append("receipts", **row)
        if second % 10 == 5:
            self._hold_back(second)
        await self._producer.seal()
        await self._consumer.seal()

    def _send(self, producer: str, **more: Any) -> dict[str, Any]:
        lane, now = LANES[producer], _now_us()
        row = {
            "producer": producer,
            "incarnation": _incarnation(producer),
            "topic": "t",
            "lane": lane,
            "sequence": self.sequences[producer],
            "outcome": OK,
            "error": 0,
            "offset": self.offsets[lane],
            "intended_us": now,
            "sent_us": now,
            "acked_us": now + 300,
            **more,
        }
        self.sequences[producer] += 1
        self.offsets[lane] += 1
        if producer != "p":
            self._producer.append("attempts", **row)
        return row

    def _receipt(self, row: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "group": "g",
            "consumer": f"c{(self.assignment + row['lane']) % 2}",
            "assignment": self.assignment,
            "topic": "t",
            "partition": row["lane"],
            "offset": row["offset"],
            "producer": row["producer"],
            "incarnation": row["incarnation"],
            "lane": row["lane"],
            "sequence": row["sequence"],
            "timestamp_us": row["sent_us"],
            "received_us": row["sent_us"] + 2000,
            "intact": True,
            **more,
        }

    def _deliver(self, row: dict[str, Any], **more: Any) -> None:
        """Deliver a message where it is in the log, whatever its answer said."""
        row = row | {"offset": self.places.pop(row["sequence"], row["offset"])}
        self._consumer.append("receipts", **self._receipt(row, **more))
        self.recent[row["lane"]] = [*self.recent.get(row["lane"], [])[-2:], row]

    def _send_transaction(self, *, is_aborted: bool, planting: str | None = None) -> None:
        self.transaction += 1
        rows = [self._send("q") for _ in range(10)]
        self.offsets[1] += 1  # the control record
        requested_us = _now_us() + 1000
        for number, row in enumerate(rows):
            name = ("producer", "incarnation", "topic", "lane", "sequence")
            self._producer.append(
                "transactions",
                **{key: row[key] for key in name},
                transaction=self.transaction,
                fate=ABORTED if is_aborted else COMMITTED,
                requested_us=requested_us,
            )
            received_us = requested_us + 5000
            if planting == "too early" and number == 0:
                received_us = requested_us - 500
            if not is_aborted or (planting == "aborted" and number == 0):
                self._deliver(row, received_us=received_us)

    def _plant_sends(self, planting: str | None, rows: list[dict[str, Any]]) -> None:
        if planting == "wrong offset":  # the answer names the place of another message
            self.places[rows[20]["sequence"]] = rows[20]["offset"]
            rows[20]["offset"] = rows[10]["offset"]
        elif planting == "reuse":
            self._producer.append("attempts", **{**rows[5], "sent_us": rows[5]["sent_us"] + 7})

    def _plant_receipts(self, planting: str | None, rows: list[dict[str, Any]]) -> None:
        row = rows[-1]
        if planting in {"copy", "unreadable", "broken"}:
            row = self._send("p")
            self.sequences["p"] -= 1 if planting != "broken" else 0
        if planting == "copy":
            self._consumer.append("receipts", **self._receipt(rows[3] | {"offset": row["offset"]}))
        elif planting == "back":
            self._consumer.append("receipts", **self._receipt(rows[-2]))
        elif planting == "unreadable":
            name = {"producer": "", "incarnation": 0, "lane": -1, "sequence": -1, "intact": False}
            self._consumer.append("receipts", **self._receipt(row, **name))
        elif planting == "broken":
            self._producer.append("attempts", **row)
            self._consumer.append("receipts", **self._receipt(row, intact=False))

    def _rebalance(self) -> None:
        """The partitions change their consumers, which deliver the last messages again."""
        self.assignment += 1
        for lane, rows in self.recent.items():
            self._consumer.append(
                "assignments",
                group="g",
                consumer=f"c{(self.assignment + lane) % 2}",
                assignment=self.assignment,
                topic="t",
                partition=lane,
                offset=rows[0]["offset"],
                assigned_us=_now_us(),
            )
            for row in rows:
                again = self._receipt(row, received_us=_now_us() + 5000)
                self._consumer.append("receipts", **again)

    def _hold_back(self, second: int) -> None:
        """One message of a lane of its own assignment arrives seconds late."""
        row = self._send("q")
        self.late.append((second + LATE_S, self._receipt(row, assignment=10_000 + second)))


def _incarnation(producer: str) -> int:
    return {"p": 1, "q": 2}[producer]


def _now_us() -> int:
    return time.time_ns() // 1000
