"""Outcomes of batches, until they become rows of the ledger, many batches at once.

A busy producer has thousands of small batches in a second. To make rows of each by itself
would cost more than to write its messages; so batches are only noted, and taken together
before a segment is sealed.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shoal.client.results import ProduceResult
from shoal.model.findings import Outcome
from shoal.model.ledger import OUTCOMES
from shoal.workload.outbox import Share
from shoal.workload.recorder import Recorder
from shoal.workload.schedule import SteadySchedule

_OUTCOME_NUMBERS = {Outcome(name): number for number, name in enumerate(OUTCOMES)}


class _Note(NamedTuple):
    share: Share
    outcome: int
    error: int
    base_offset: int
    sent_us: int
    acked_us: int


class OutcomeRows:
    """Outcomes of one producer that are not in the ledger yet."""

    def __init__(self, producer: str, schedules: Mapping[str, SteadySchedule]) -> None:
        self._producer = producer
        self._schedules = dict(schedules)
        self._notes: dict[str, list[_Note]] = {topic: [] for topic in schedules}

    def add(self, topic: str, share: Share, result: ProduceResult, times: tuple[int, int]) -> None:
        """Note what became of one batch; `times` are when it was sent and acknowledged."""
        base_offset = result.base_offset if result.outcome is Outcome.OK else -1
        number = _OUTCOME_NUMBERS[result.outcome]
        self._notes[topic].append(_Note(share, number, result.error_code, base_offset, *times))

    def move_to(self, recorder: Recorder) -> None:
        """Make rows of all that is noted."""
        for topic, notes in self._notes.items():
            if notes:
                self._append(recorder, topic, notes)
                notes.clear()

    def _append(self, recorder: Recorder, topic: str, notes: list[_Note]) -> None:
        counts = np.array([len(note.share) for note in notes])
        shared = np.array([note[1:] for note in notes], np.int64).repeat(counts, axis=0)
        outcome, error, base_offset, sent_us, acked_us = shared.T
        place_in_batch = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        numbers = np.concatenate([note.share.numbers for note in notes])
        recorder.append(
            "attempts",
            producer=self._producer,
            topic=topic,
            lane=np.concatenate([note.share.lanes for note in notes]),
            sequence=np.concatenate([note.share.sequences for note in notes]),
            outcome=outcome,
            error=error,
            offset=np.where(base_offset < 0, -1, base_offset + place_in_batch),
            intended_us=self._schedules[topic].intended_us(numbers),
            sent_us=sent_us,
            acked_us=acked_us,
        )
