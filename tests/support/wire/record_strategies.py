"""Hypothesis strategies for records."""

from hypothesis import strategies as st

from shoal.wire.records.records import Record

_BYTES = st.none() | st.binary(max_size=200)
# Any text that UTF-8 can carry, and bytes that are no UTF-8 as they come out of the decoder.
_HEADER_KEYS = st.text(max_size=20) | st.binary(max_size=5).map(
    lambda raw: raw.decode(errors="surrogateescape")
)
_TIMESTAMPS = st.integers(-(1 << 62), (1 << 62) - 1) | st.integers(0, 2_000_000_000_000)


def records(min_size: int = 1, max_size: int = 20) -> st.SearchStrategy[list[Record]]:
    """Lists of records with offsets that rise from anywhere, with gaps."""
    contents = st.tuples(
        st.integers(1, 1000),
        _TIMESTAMPS,
        _BYTES,
        _BYTES,
        st.lists(st.tuples(_HEADER_KEYS, _BYTES), max_size=4).map(tuple),
    )
    return st.lists(contents, min_size=min_size, max_size=max_size).map(_number)


def dense_records(min_size: int = 1, max_size: int = 20) -> st.SearchStrategy[list[Record]]:
    """Lists of records with the offsets 0, 1, 2, …, as producers send them."""
    return records(min_size, max_size).map(
        lambda found: [record._replace(offset=offset) for offset, record in enumerate(found)]
    )


def _number(contents: list[tuple[int, int, bytes | None, bytes | None, tuple]]) -> list[Record]:  # type: ignore[type-arg]
    offset = -1
    numbered = []
    for gap, timestamp, key, value, headers in contents:
        offset += gap
        numbered.append(Record(offset, timestamp, key, value, headers))
    return numbered
