"""Collects outcomes of batches, and turns many at once into rows of the ledger.

A busy producer sends thousands of small batches a second. Making rows for each of them would cost
more than encoding its messages. So batches are collected, and become rows together before a
segment is sealed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from shoal.model.findings import Outcome
from shoal.model.ledger import OUTCOMES
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.drivers import PartResult
from shoal.workload.send.outbox import PlannedBatch
from shoal.workload.send.schedule import Schedule

_OUTCOME_NUMBERS = {Outcome(name): number for number, name in enumerate(OUTCOMES)}


# Turning this many batches into rows takes some hundred microseconds.
_FLUSH_AFTER = 256


class AnsweredBatch(NamedTuple):
    """Messages of one partition that were sent together, and their outcomes."""

    topic: str
    planned: PlannedBatch
    sent_us: int
    parts: list[PartResult]


class OutcomeRows:
    """Outcomes of one producer that are not yet in the ledger."""

    def __init__(self, producer: str, incarnation: int, schedules: Mapping[str, Schedule]) -> None:
        self._producer = producer
        self._incarnation = incarnation
        self._schedules = dict(schedules)
        self._notes: dict[str, list[AnsweredBatch]] = {topic: [] for topic in schedules}
        self._count = 0

    def add(self, answered: AnsweredBatch) -> None:
        """Add the outcomes of a batch."""
        self._notes[answered.topic].append(answered)
        self._count += 1

    @property
    def should_flush(self) -> bool:
        """Whether flushing more of them at once would delay messages."""
        return self._count >= _FLUSH_AFTER

    def flush_to(self, recorder: Recorder) -> None:
        """Append all collected outcomes to the ledger as rows."""
        self._count = 0
        for topic, notes in self._notes.items():
            if notes:
                self._append(recorder, topic, notes)
                notes.clear()

    def _append(self, recorder: Recorder, topic: str, notes: list[AnsweredBatch]) -> None:
        counts = np.array([part.messages for note in notes for part in note.parts])
        shared = np.array(list(_iter_part_columns(notes)), np.int64).repeat(counts, axis=0)
        outcome, error, base_offset, sent_us, acked_us = shared.T
        place_in_part = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        numbers = np.concatenate([note.planned.numbers for note in notes])
        recorder.append(
            "attempts",
            producer=self._producer,
            incarnation=self._incarnation,
            topic=topic,
            lane=np.concatenate([note.planned.lanes for note in notes]),
            sequence=np.concatenate([note.planned.sequences for note in notes]),
            outcome=outcome,
            error=error,
            offset=np.where(base_offset < 0, -1, base_offset + place_in_part),
            intended_us=self._schedules[topic].due_times_us(numbers),
            sent_us=sent_us,
            acked_us=acked_us,
        )


def _iter_part_columns(notes: Iterable[AnsweredBatch]) -> Iterable[tuple[int, int, int, int, int]]:
    for note in notes:
        for part in note.parts:
            result = part.result
            number = _OUTCOME_NUMBERS[result.outcome]
            offset = result.base_offset if result.outcome is Outcome.OK else -1
            yield number, result.error_code, offset, note.sent_us, part.acked_us
