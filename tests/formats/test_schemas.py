"""Declared names are what they were: a rename in Python changes no format.

`schemas.json` has every declared name. A test that fails here means that the bytes of a format
have changed. If that is wanted, the format gets a new version, its reader says what becomes of the
old one (`docs/reference/formats.md`), and `schemas.json` is written again:

    SHOAL_WRITE_SCHEMAS=1 pytest tests/formats/test_schemas.py
"""

import json
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest

from shoal.lite.metadata.data import values
from shoal.model.serialised import (
    AbsentUpTo,
    FormatMismatch,
    arguments_of,
    check_version,
    from_plain,
    names_of,
    to_plain,
)
from shoal.model.topics import TopicPartition
from support.formats.declared import DECLARED, collect_schemas
from support.formats.stored import FORMATS

SCHEMAS = FORMATS / "schemas.json"


def test_declared_names_are_those_of_their_version() -> None:
    declared = json.loads(json.dumps(collect_schemas()))
    if os.environ.get("SHOAL_WRITE_SCHEMAS"):
        SCHEMAS.write_text(json.dumps(declared, indent=1) + "\n")
    stored = json.loads(SCHEMAS.read_text())
    assert declared == stored


def test_requests_to_controllers_are_declared_under_the_names_that_they_travel_by() -> None:
    declared = DECLARED["requests to controllers"][1]
    assert declared == values._CLASSES
    assert values._ENUMS.keys() == {"Code", "Election"}
    assert values._TUPLES.keys() == {"TopicPartition"}


# The mechanism


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    number: Annotated[int, "n"]


@dataclass(frozen=True, slots=True)
class Whole:
    topic_id: Annotated[UUID, "id"]
    renamed: Annotated[int, "number"]
    colour: Annotated[Colour, "colour"]
    parts: Annotated[tuple[Part, ...], "parts"]
    place: Annotated[TopicPartition, "place"]
    by_id: Annotated[dict[int, float], "by_id"]
    file: Annotated[Path | None, "file"] = None
    pairs: Annotated[tuple[tuple[int, str], ...], "pairs", AbsentUpTo(2)] = ()


WHOLE = Whole(
    UUID(int=7),
    3,
    Colour.RED,
    (Part(1), Part(2)),
    TopicPartition("t", 4),
    {5: 0.5},
    None,
    ((1, "a"),),
)
PLAIN: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-000000000007",
    "number": 3,
    "colour": "red",
    "parts": [{"n": 1}, {"n": 2}],
    "place": ["t", 4],
    "by_id": {"5": 0.5},
    "file": None,
    "pairs": [[1, "a"]],
}


def test_values_survive_their_plain_form() -> None:
    assert json.loads(json.dumps(to_plain(WHOLE))) == PLAIN
    assert from_plain(Whole, PLAIN) == WHOLE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"number": True}, "number is True, not a int"),
        ({"number": "3"}, "number is '3', not a int"),
        ({"colour": "blue"}, r"colour is 'blue', not one of \['red'\]"),
        ({"parts": [{"n": 1}, {"n": None}]}, r"parts\[1\].n is None, not a int"),
        ({"parts": [{"m": 1}]}, r"parts\[0\] lacks the field 'n'"),
        ({"parts": [{"n": 1, "m": 1}]}, r"parts\[0\] has the unknown field 'm'"),
        ({"place": ["t"]}, "place is .*, not a list of 2"),
        ({"by_id": {"x": 1.0}}, "by_id has the name 'x', not a number"),
        ({"id": "7"}, "id is '7', not a UUID"),
        ({"renamed": 3}, "has the unknown field 'renamed'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(FormatMismatch, match=f"^{reason}$"):
        from_plain(Whole, PLAIN | change)


def test_a_missing_field_has_its_default_only_where_the_version_lacked_it() -> None:
    older = {name: value for name, value in PLAIN.items() if name != "pairs"}
    assert from_plain(Whole, older, version=2).pairs == ()
    for version in (None, 3):
        with pytest.raises(FormatMismatch, match="lacks the field 'pairs'"):
            from_plain(Whole, older, version=version)
    with pytest.raises(FormatMismatch, match="lacks the field 'file'"):
        from_plain(Whole, {n: v for n, v in PLAIN.items() if n != "file"}, version=1)


def test_versions_and_names_that_are_not_known_are_refused() -> None:
    assert check_version(2, (1, 2)) == 2
    for said in (3, "2", None, True):
        with pytest.raises(FormatMismatch, match="reads 1 and 2"):
            check_version(said, (1, 2))
    assert arguments_of(Whole, {"number": 1}) == {"renamed": 1}
    with pytest.raises(FormatMismatch, match="unknown field 'renamed'"):
        arguments_of(Whole, {"renamed": 1})


def test_a_class_that_declares_no_names_cannot_be_written() -> None:
    @dataclass
    class Nameless:
        number: int

    @dataclass
    class Twice:
        one: Annotated[int, "n"]
        two: Annotated[int, "n"]

    for cls, reason in ((Nameless, "declares no serialised name"), (Twice, "one serialised name")):
        with pytest.raises(TypeError, match=reason):
            names_of(cls)
