"""Faults in the commit log: windows, and what is no window."""

from typing import Any

import pytest

from shoal.audit.faults import FaultWindow, fault_windows
from shoal.model.errors import LedgerError


def line(number: int, phase: str, at_us: int, **more: Any) -> dict[str, Any]:
    told = {"kind": "fault", "fault": number, "phase": phase, "at_us": at_us}
    return {**told, "name": "kill", "target": "source/1", "detail": {}, **more}


def test_a_begin_and_an_end_make_a_window() -> None:
    lines = [
        line(1, "begin", 5, detail={"signal": 9}),
        line(2, "begin", 7, name="pause", target="mirror"),
        line(1, "end", 9),
    ]
    assert fault_windows(lines) == (
        FaultWindow(1, "kill", "source/1", 5, 9, {"signal": 9}),
        FaultWindow(2, "pause", "mirror", 7),
    )


@pytest.mark.parametrize(
    "lines",
    [
        [line(1, "end", 9)],
        [line(1, "begin", 5), line(1, "begin", 6)],
        [line(1, "begin", 5), line(1, "end", 6), line(1, "end", 6)],
        [line(1, "middle", 5)],
        [{"kind": "fault", "at_us": 5, "name": "kill"}],
        [{**line(1, "begin", 5), "at_us": "5"}],
        [line(1, "begin", 5, detail=[1])],
    ],
)
def test_lines_that_make_no_sense_are_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(LedgerError, match="fault"):
        fault_windows(lines)
