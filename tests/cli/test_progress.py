"""What a command shows while it works."""

from collections.abc import Iterator

import pytest
from rich.progress import Progress

from shoal.cli.shared import console, progress
from shoal.experiment.faults.fault_injection import FaultEvent
from shoal.experiment.run import RunProgress
from shoal.telemetry.definitions import LATENCY_BOUNDS_US


@pytest.fixture
def view() -> Iterator[tuple[progress.RunView, list[float]]]:
    """A view, and its clock, which the test moves."""
    now = [100.0]
    with Progress(console=console.err, disable=True) as bar:
        yield progress.RunView(bar, now_s=lambda: now[0]), now


def step(received: int, *, latencies: tuple[int, ...] = ()) -> RunProgress:
    counts = [0] * len(LATENCY_BOUNDS_US) + [0, 0]
    for place, count in enumerate(latencies):
        counts[place] = count
    found = {"end_to_end": counts} if latencies else {}
    return RunProgress("sending", received + 10, received, 20_000, latencies=found)


def test_a_run_shows_rate_latency_and_time(
    view: tuple[progress.RunView, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    show, now = view
    show(step(0))
    now[0] += 1
    show(step(500))  # too soon for another line
    now[0] += 1
    show(step(3000, latencies=(90, 5, 4, 1)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  sending: 10 sent, 0 received, 0/s, 0 s"
    assert lines[1] == "  sending: 3,010 sent, 3,000 received, 1,500/s, p99 < 4.10 ms, 2 s"
    assert len(lines) == 2


def test_a_step_with_an_end_shows_how_far_it_is(
    view: tuple[progress.RunView, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    show, _ = view
    show(RunProgress("reading the logs", done=500, to_do=2000, unit="records"))
    show(RunProgress("judging on Spark"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["  reading the logs: 500 of 2,000 records", "  judging on Spark"]


def test_faults_are_shown_when_they_strike(
    view: tuple[progress.RunView, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    show, _ = view
    show.on_fault(FaultEvent(1, "kill", "source/2", "begin", 3.04))
    show.on_fault(FaultEvent(1, "kill", "source/2", "end", 4.0, failed="it does not start"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  3.0 s: fault 1 (kill source/2) begins"
    assert lines[1] == "  4.0 s: fault 1 (kill source/2) failed: it does not start"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    rate = progress.Rate(lambda: now[0])
    counts = []
    for second in range(20):
        now[0] = second
        counts.append(rate.update(1000 * min(second, 10)))
    assert counts[0] == 0
    assert counts[9] == 1000
    assert counts[19] == 0


def test_a_histogram_has_a_line_for_each_bucket_in_use() -> None:
    counts = [0] * (len(LATENCY_BOUNDS_US) + 1)
    counts[2], counts[4] = 300, 100
    lines = progress.histogram_lines(counts)
    assert [line.split()[1:4] for line in lines] == [
        ["4.10", "ms", "300"],
        ["8.19", "ms", "0"],
        ["16.38", "ms", "100"],
    ]
    assert lines[0].count("█") == 3 * lines[2].count("█") + 1 or lines[0].count("█") == 40
    assert progress.histogram_lines([0] * 16) == []
    assert progress.percentile_bound([0] * 16, 99) == ""
    assert progress.percentile_bound([0] * 15 + [1], 99) == "p99 > 16.78 s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.9, "8 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")]
)
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert progress.format_elapsed(seconds) == text
