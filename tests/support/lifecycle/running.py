"""Runs plays, several at once, each between clusters of its own."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.lifecycle.cells import Cell, PlayKey, group_plays
from support.lifecycle.events import SCRIPTS
from support.lifecycle.planting import Planted, plant_skips
from support.lifecycle.plays import Play, Result, make_folder
from support.lifecycle.worlds import World


@dataclass(frozen=True)
class RunOptions:
    """How cells are played."""

    engine: str = "lite"
    jobs: int = 1
    seed: int = 0
    limit_s: float = 0.0  # no play begins after so long; 0 for no limit
    patience: float = 1.0
    plants: bool = False  # defects first, which the judges must find


class Played(NamedTuple):
    """What came of a run."""

    results: list[Result]
    planted: Planted | None = None


def play_cells(
    cells: Iterable[Cell],
    folder: Path,
    options: RunOptions,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Played:
    """Play these cells; those for which there was no time are left out."""
    plays = list(group_plays(cells))
    # By chance, so that a run that is cut short has seen something of everything.
    random.Random(options.seed).shuffle(plays)
    waiting: queue.SimpleQueue[tuple[PlayKey, list[Cell]]] = queue.SimpleQueue()
    for play in plays:
        waiting.put(play)
    runner = _Runner(waiting, folder, options, on_result)
    threads = [
        threading.Thread(target=runner.work, args=(number,), name=f"plays-{number}")
        for number in range(min(options.jobs, len(plays)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if runner.error is not None:
        raise runner.error
    return Played(runner.results, runner.planted)


class _Runner:
    def __init__(
        self,
        waiting: "queue.SimpleQueue[tuple[PlayKey, list[Cell]]]",
        folder: Path,
        options: RunOptions,
        on_result: Callable[[Result], None],
    ) -> None:
        self._waiting = waiting
        self._folder = folder
        self._options = options
        self._on_result = on_result
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + options.limit_s if options.limit_s else float("inf")
        self.results: list[Result] = []
        self.planted: Planted | None = None
        self.error: BaseException | None = None

    def work(self, number: int) -> None:
        try:
            world = World(self._options.engine, make_folder(self._folder, number))
            with world.running():
                if self._options.plants and number == 0:
                    self.planted = plant_skips(world, patience=self._options.patience)
                self._play_all(world)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for all
            self.error = self.error or error

    def _play_all(self, world: World) -> None:
        while self.error is None and time.monotonic() < self._deadline:
            try:
                key, cells = self._waiting.get_nowait()
            except queue.Empty:
                return
            play = Play(world, key, cells, SCRIPTS[key.event], patience=self._options.patience)
            for result in play.run():
                with self._lock:
                    self.results.append(result)
                    self._on_result(result)
