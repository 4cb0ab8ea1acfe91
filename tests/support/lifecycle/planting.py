"""A planted defect: mirrors that pass over batches and stay silent. The judges must find each.

The mirrors are real processes whose intake is changed (`wrapped_mirror`), and they are played and
judged as in any other cell. The topic that is given by name is copied whole: it shows that the
judges do not call everything silent.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from support.lifecycle.cells import Cell, Delivery, Match, Outcome, PlayKey, When, is_valid
from support.lifecycle.events import SCRIPTS
from support.lifecycle.plays import Play, Result
from support.lifecycle.worlds import World

KEY: Final = PlayKey("source-retention", When.RUNNING)
# A silent outcome is only known when patience is over.
PATIENCE_S: Final = 5.0


class Planted(NamedTuple):
    """What the judges made of the planted defects."""

    found: int
    planted: int
    mistaken: tuple[str, ...] = ()  # verdicts that should be others

    @property
    def is_good(self) -> bool:
        return self.found == self.planted > 0 and not self.mistaken


def plant_skips(
    world: World, deliveries: Sequence[Delivery] = tuple(Delivery), *, patience: float = 1.0
) -> Planted:
    """Play one event with mirrors that skip batches of the topics that patterns match."""
    cells = [Cell(*KEY, match, delivery) for delivery in deliveries for match in Match]
    cells = [cell for cell in cells if is_valid(cell, world.engine)]
    script = SCRIPTS[KEY.event]
    short = replace(script, layout=replace(script.layout, patience_s=PATIENCE_S))
    return count_found(Play(world, KEY, cells, short, sabotages=True, patience=patience).run())


def count_found(results: Sequence[Result]) -> Planted:
    """Of the planted defects; the other cells must be copied."""
    expected = {Match.PATTERN: Outcome.SILENT, Match.NAME: Outcome.COPIED}
    planted = [each for each in results if each.cell.match is Match.PATTERN]
    found = sum(each.verdict.outcome is Outcome.SILENT for each in planted)
    mistaken = tuple(
        f"{each.cell}: {each.verdict.outcome} {each.verdict.detail}"
        for each in results
        if each.verdict.outcome is not expected[each.cell.match]
    )
    return Planted(found, len(planted), mistaken)
