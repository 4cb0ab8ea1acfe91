"""Which of several witnesses of a finding is shown: the smallest, so that order does not matter."""

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.audit.context import Stream, StreamKey, sort_key


def smallest_witness(witnesses: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the witness that is first by topic, producer, incarnation, lane and sequence."""
    return min(witnesses, key=_witness_key)


def _witness_key(details: Mapping[str, Any]) -> tuple[StreamKey, int]:
    return sort_key(Stream(**{name: details[name] for name in Stream._fields})), details["sequence"]
