"""Outcomes of batches, until they become rows of the ledger, many batches at once.

A busy producer has thousands of small batches in a second. To make rows of each by itself
would cost more than to write its messages; so batches are only noted, and taken together
before a segment is sealed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from shoal.model.findings import Outcome
from shoal.model.ledger import OUTCOMES
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.drivers import Part
from shoal.workload.send.outbox import Share
from shoal.workload.send.schedule import Schedule

_OUTCOME_NUMBERS = {Outcome(name): number for number, name in enumerate(OUTCOMES)}


# Some hundred microseconds' worth.
_MOST_AT_ONCE = 256


class Answered(NamedTuple):
    """Messages of one partition that were sent together, and what became of them."""

    topic: str
    share: Share
    sent_us: int
    parts: list[Part]


class OutcomeRows:
    """Outcomes of one producer that are not in the ledger yet."""

    def __init__(self, producer: str, incarnation: int, schedules: Mapping[str, Schedule]) -> None:
        self._producer = producer
        self._incarnation = incarnation
        self._schedules = dict(schedules)
        self._notes: dict[str, list[Answered]] = {topic: [] for topic in schedules}
        self._count = 0

    def add(self, answered: Answered) -> None:
        """Note what became of messages."""
        self._notes[answered.topic].append(answered)
        self._count += 1

    @property
    def are_many(self) -> bool:
        """Whether more of them at once would keep messages waiting."""
        return self._count >= _MOST_AT_ONCE

    def move_to(self, recorder: Recorder) -> None:
        """Make rows of all that is noted."""
        self._count = 0
        for topic, notes in self._notes.items():
            if notes:
                self._append(recorder, topic, notes)
                notes.clear()

    def _append(self, recorder: Recorder, topic: str, notes: list[Answered]) -> None:
        counts = np.array([part.messages for note in notes for part in note.parts])
        shared = np.array(list(_shared_columns(notes)), np.int64).repeat(counts, axis=0)
        outcome, error, base_offset, sent_us, acked_us = shared.T
        place_in_part = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        numbers = np.concatenate([note.share.numbers for note in notes])
        recorder.append(
            "attempts",
            producer=self._producer,
            incarnation=self._incarnation,
            topic=topic,
            lane=np.concatenate([note.share.lanes for note in notes]),
            sequence=np.concatenate([note.share.sequences for note in notes]),
            outcome=outcome,
            error=error,
            offset=np.where(base_offset < 0, -1, base_offset + place_in_part),
            intended_us=self._schedules[topic].intended_us(numbers),
            sent_us=sent_us,
            acked_us=acked_us,
        )


def _shared_columns(notes: Iterable[Answered]) -> Iterable[tuple[int, int, int, int, int]]:
    for note in notes:
        for part in note.parts:
            result = part.result
            number = _OUTCOME_NUMBERS[result.outcome]
            offset = result.base_offset if result.outcome is Outcome.OK else -1
            yield number, result.error_code, offset, note.sent_us, part.acked_us
