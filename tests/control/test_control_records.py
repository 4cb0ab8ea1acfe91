"""Two values side by side: what is shown is them, and what is marked is where they differ."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.control.records import SHOWN_BYTES, compare_records, mark_difference, show
from shoal.wire.records.records import Record

TEXTS = st.text("ab é", max_size=60).map(str.encode)


@given(TEXTS, TEXTS)
def test_the_marked_parts_make_up_both_values(left: bytes, right: bytes) -> None:
    found = mark_difference(left, right)
    for side, value in ((found["source"], left), (found["target"], right)):
        if found["first"] == 0 and "\ufffd" not in "".join(side):
            assert "".join(side).encode() == value
    is_marked = bool(found["source"][1] or found["target"][1])
    assert is_marked == (left != right)


def test_bytes_that_are_no_text_are_hex() -> None:
    found = mark_difference(b"\x00\xffab", b"\x00\xfeab")
    assert found["source"] == ["00", "ff", "61 62"]
    assert found["target"] == ["00", "fe", "61 62"]


def test_a_large_value_is_shown_around_its_first_difference() -> None:
    same = b"x" * 1_000_000
    found = mark_difference(same + b"1" + same, same + b"2" + same)
    assert found["source"][1] == "1"
    assert found["target"][1] == "2"
    assert found["first"] > 999_000
    assert all(len(part) <= SHOWN_BYTES for part in found["source"])
    assert found["sizes"] == [2_000_001, 2_000_001]


def test_a_record_that_one_side_lacks_differs_in_every_field() -> None:
    record = Record(7, 1000, b"k", None, (("h", b"\xff"),))
    fields = {each["field"]: each for each in compare_records(record, None)}
    assert fields["key"]["is_equal"] is False
    assert fields["value"]["is_equal"] is True  # both have none
    assert fields["headers"]["target"] is None
    assert show(record)["headers"] == [["h", {"text": "ff", "size": 1, "cut": False}]]


def test_headers_are_shown_as_text_and_told_from_no_value() -> None:
    texts = Record(7, 1000, b"k", b"v", (("h", b"it's <b>"), ("empty", b""), ("none", None)))
    other = Record(7, 1000, b"k", b"v", (("h", b"it's <b>"), ("empty", None), ("none", b"")))
    (fields,) = [each for each in compare_records(texts, other) if each["field"] == "headers"]
    assert fields["is_equal"] is False
    assert "".join(fields["source"]) == "h=it's <b>\nempty=\nnone (no value)"
    assert "".join(fields["target"]) == "h=it's <b>\nempty (no value)\nnone="
