"""The names of producers in reports: the id, with the incarnation only if an id is shared.

`p` is the producer with that id. If several producers had one id, each is named `p#` and the eight
hexadecimal digits of its incarnation.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Witness = dict[str, Any]


class ProducerNames:
    """The producers of one run."""

    def __init__(self, producers: Iterable[tuple[str, int]]) -> None:
        """`producers` are pairs of id and incarnation."""
        self._incarnations: dict[str, set[int]] = defaultdict(set)
        for producer, incarnation in producers:
            self._incarnations[producer].add(incarnation)

    def name(self, producer: str, incarnation: int) -> str:
        """Return the id, with the incarnation if several producers of the run have this id."""
        is_only = self._incarnations.get(producer, {incarnation}) == {incarnation}
        return producer if is_only else f"{producer}#{incarnation:08x}"

    def name_in(self, witness: Mapping[str, Any]) -> Witness:
        """Return a witness with the producer's name instead of its id and incarnation."""
        named = {key: value for key, value in witness.items() if key != "incarnation"}
        if "incarnation" in witness:
            named["producer"] = self.name(witness["producer"], witness["incarnation"])
        return named
