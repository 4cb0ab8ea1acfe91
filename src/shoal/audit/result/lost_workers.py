"""Workers that a run lost without planning it: what they left unsent proves nothing.

Also what the sentence says of a run that was killed or stopped: it is judged as far as it went.

Rules:
- A producer or consumer is lost if its last lease ended as `lost` or `failed`. One that was
  restarted is not, and neither is one that a fault of the run killed.
- Then the asked load is unsent if some producer did not finish: a lost one, or one that was
  stopped because nobody was left to receive. A run that was killed has no such lines, and is judged
  as far as it went.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.model.run_folder import RunFolder

Json = Mapping[str, Any]

_LOST: Final = ("lost", "failed")
_SCAN: Final = "scan-"
MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that ended without being asked to, how, and how many attempts it may have made."""

    worker: str
    reason: str
    error: str
    at_us: int
    attempts: int  # reserved or recorded; 0 of a consumer

    def __str__(self) -> str:
        return f"{self.worker} {'failed' if self.reason == 'failed' else 'was lost'}" + (
            f" ({self.error})" if self.error else ""
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "reason": self.reason,
            "error": self.error,
            "at_us": self.at_us,
            "attempts": self.attempts,
        }


@dataclass(frozen=True, slots=True)
class WorkerLosses:
    """All workers that a run lost, and whether messages that it was asked for are unsent."""

    workers: tuple[LostWorker, ...] = ()
    is_load_unsent: bool = False
    asked: int | None = None  # messages, where `run.json` says it
    ending: str = ""  # what became of a run that did not finish

    def describe(self, attempts: int) -> str:
        """A clause on who was lost, and how far the run came; "" if it finished with all."""
        if not self.workers:
            return self._describe_ending(attempts)
        text = ", ".join(map(str, self.workers[:MOST_NAMED]))
        if len(self.workers) > MOST_NAMED:
            text += f" and {len(self.workers) - MOST_NAMED:,} more"
        if not self.is_load_unsent:
            return text
        if self.asked is None or self.asked <= attempts:
            return f"{text}, so not all was sent"
        return f"{text}, so {attempts:,} of {self.asked:,} messages were attempted"

    def _describe_ending(self, attempts: int) -> str:
        if self.ending and self.asked is not None and attempts < self.asked:
            return f"{self.ending} after {attempts:,} of {self.asked:,} attempts"
        return self.ending


_ENDINGS: Final = {"running": "the run has not ended", "interrupted": "the run was interrupted"}


def find_worker_losses(folders: Iterable[RunFolder]) -> WorkerLosses:
    lost: list[LostWorker] = []
    is_unsent, asked, ending = False, None, ""
    for folder in folders:
        ends = _list_last_ends(folder.commits)
        producers = _count_reserved(folder.commits)
        own = list(_find_lost(folder.commits, ends, producers))
        lost += own
        if own and any(ends.get(name, {}).get("reason") != "finished" for name in producers):
            is_unsent = True
        ending = ending or _ENDINGS.get(str(folder.plan.get("state")), "")
        workload = folder.plan.get("workload")
        messages = workload.get("messages") if isinstance(workload, Mapping) else None
        asked = messages if isinstance(messages, int) else asked
    return WorkerLosses(tuple(lost), is_unsent, asked, ending)


def _list_last_ends(commits: Sequence[Json]) -> dict[str, Json]:
    """Return the line with which the last lease of each worker ended; empty if none did."""
    ends: dict[str, Json] = {}
    for line in commits:
        if line["kind"] == "lease":
            ends[str(line.get("worker"))] = {}
        elif line["kind"] == "ended":
            ends[str(line.get("worker"))] = line
    return ends


def _count_reserved(commits: Sequence[Json]) -> dict[str, int]:
    """Return how many attempts each worker that produces has reserved."""
    lanes: dict[str, dict[tuple[Any, ...], int]] = {}
    for line in commits:
        if line["kind"] == "reserve" and isinstance(until := line.get("until"), int):
            name = ("producer", "incarnation", "topic", "lane")
            lanes.setdefault(str(line.get("worker")), {})[tuple(map(line.get, name))] = until
    return {worker: sum(own.values()) for worker, own in lanes.items()}


def _find_lost(
    commits: Sequence[Json], ends: Mapping[str, Json], producers: Mapping[str, int]
) -> Iterator[LostWorker]:
    killed = {
        name
        for line in commits
        if line["kind"] == "fault" and line.get("name") == "kill"
        for name in str(line.get("target")).split(",")
    }
    for worker, line in ends.items():
        if line.get("reason") in _LOST and worker not in killed and not worker.startswith(_SCAN):
            at_us = line.get("at_us")
            yield LostWorker(
                worker,
                str(line["reason"]),
                str(line.get("error") or ""),
                at_us if isinstance(at_us, int) else 0,
                producers.get(worker, 0),
            )
