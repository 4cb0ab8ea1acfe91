"""The benchmarks' harness measures what it says, in this process and in others."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import harness  # noqa: E402 - found by the path above
from benchmarks.harness import Case, Claim, Side, compare, measure, prove  # noqa: E402

BURN = """
import time
while input():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    print(flush=True)
"""


def burn(cpu_s: float) -> None:
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def burner(name: str, cpu_s: float) -> Side:
    def run() -> int:
        burn(cpu_s)
        return 1_000_000

    return Side(name, run)


def test_the_ratio_is_that_of_cpu_per_byte() -> None:
    def twice_the_bytes() -> int:
        burn(0.02)
        return 2_000_000

    result = compare(Case("x", ours=Side("ours", twice_the_bytes), theirs=burner("theirs", 0.04)))
    assert 3 < result["ratio_median"] < 5.5
    low, high = result["ratio_interval"]
    assert low <= result["ratio_median"] <= high
    assert len(result["ours"]["runs"]) == len(result["theirs"]["runs"]) == 5
    assert 8 < result["ours"]["cpu_s_per_gb_median"] < 15


def test_allocations_of_this_process_are_seen() -> None:
    def allocate() -> int:
        return len(bytes(30 * 1024 * 1024))

    result = compare(Case("x", ours=Side("ours", allocate), theirs=burner("theirs", 0.001)))
    assert 29 < result["ours"]["peak_memory_mib"] < 35
    assert result["theirs"]["peak_memory_mib"] < 1


@pytest.fixture
def child() -> Iterator["subprocess.Popen[str]"]:
    """A process that uses 0.2 s of CPU for each line it is given."""
    process = subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


def test_work_of_other_processes_counts_where_named(child: "subprocess.Popen[str]") -> None:
    def ask() -> int:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        return 1_000_000

    elsewhere = Side("elsewhere", ask, pids=lambda: [child.pid], counts_this_process=False)
    run = measure(elsewhere)
    assert 0.15 < run.cpu_s < 0.3
    assert run.trees_peak_bytes > 1_000_000
    assert measure(Side("waiting", ask)).cpu_s < 0.1


def test_a_claim_is_stored_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    fast, slow = burner("fast", 0.002), burner("slow", 0.02)
    cases = [
        Case("judged", ours=fast, theirs=slow),
        Case("known", ours=slow, theirs=fast, judged=False),
    ]
    claim = Claim("example", "Fast is twice as fast.", bar=2, packages=("psutil",))
    assert prove(claim, cases) == 0
    stored = json.loads((tmp_path / "example.json").read_text())
    assert stored["holds"] is True
    assert stored["cases"][0]["ratio_median"] > 2
    assert stored["cases"][1]["ratio_median"] < 1
    assert stored["machine"]["cores"] >= 1
    assert set(stored["versions"]) == {"psutil"}
    assert "judged:" in capsys.readouterr().out
    too_much = Claim("example", "Fast is a thousand times as fast.", bar=1000)
    assert prove(too_much, cases[:1]) == 1
    assert json.loads((tmp_path / "example.json").read_text())["holds"] is False


def test_finished_cases_stay_when_the_next_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    side = burner("any", 0.001)

    def cases() -> Iterator[Case]:
        yield Case("first", ours=side, theirs=side)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prove(Claim("example", "Any is as fast as any."), cases())
    [path] = tmp_path.iterdir()
    assert path.name == "example.json.part"
    assert [case["case"] for case in json.loads(path.read_text())["cases"]] == ["first"]


def test_too_few_pairs_are_refused() -> None:
    side = burner("any", 0.001)
    with pytest.raises(AssertionError, match="too few"):
        compare(Case("x", ours=side, theirs=side), pairs=4)


def test_stored_results_belong_to_benchmarks_and_hold() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        stored = json.loads(path.read_text())
        assert (ROOT / "benchmarks" / f"{stored['name']}.py").exists()
        assert stored["holds"] is True, path.name
