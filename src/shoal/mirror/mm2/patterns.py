"""Selects names of topics, groups and configs by MirrorMaker 2's lists of regular expressions.

Rules, as in MirrorMaker 2:
- A list is separated by commas; each entry is a regular expression that must match a whole name. A
  plain name is an expression that matches itself.
- Names that match the exclude list are excluded, even if the other list names them.
- `PLAIN` entries are looked up by name, so that a missing topic can be reported.
"""

import re
from collections.abc import Iterable
from typing import Final

from shoal.model.errors import ConfigError

# MirrorMaker 2's defaults.
TOPICS_EXCLUDE: Final = (r"mm2.*\.internal", r".*\.replica", r"__.*")
GROUPS_EXCLUDE: Final = (r"console-consumer-.*", r"connect-.*", r"__.*")
CONFIGS_EXCLUDE: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"log\.message\.timestamp\.before\.max\.ms",
    r"log\.message\.timestamp\.after\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")


class Patterns:
    """A list of regular expressions."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = tuple(entries)
        try:
            self._compiled = [re.compile(entry) for entry in self.entries]
        except re.error as error:
            raise ConfigError(
                f"{error.pattern!r} is not a valid regular expression: {error}",
                remedy="write names or expressions, separated by commas, such as orders,pay.*",
            ) from error

    def match(self, name: str) -> bool:
        return any(each.fullmatch(name) for each in self._compiled)

    @property
    def plain(self) -> list[str]:
        """The entries that are plain names."""
        return [entry for entry in self.entries if PLAIN.fullmatch(entry)]

    @property
    def expressions(self) -> list[str]:
        """The entries that are not plain names."""
        return [entry for entry in self.entries if not PLAIN.fullmatch(entry)]


class Selection:
    """The names that match one list and do not match another."""

    def __init__(self, include: Iterable[str], exclude: Iterable[str]) -> None:
        self.include = Patterns(include)
        self._exclude = Patterns(exclude)

    def includes(self, name: str) -> bool:
        return self.include.match(name) and not self._exclude.match(name)

    def excludes(self, name: str) -> bool:
        return self._exclude.match(name)

    def find_common(self, other: "Selection") -> str:
        """An entry by which both select the same names; empty if none is known.

        Two different expressions are not compared.
        """
        for one, two in ((self, other), (other, self)):
            for entry in one.include.entries:
                is_shared = entry in two.include.entries or entry == ".*"
                if PLAIN.fullmatch(entry):
                    is_shared = two.includes(entry) and one.includes(entry)
                if is_shared:
                    return entry
        return ""

    @property
    def named(self) -> list[str]:
        """The names in the include list that are not expressions."""
        return self.include.plain


def parse_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into its entries."""
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())
