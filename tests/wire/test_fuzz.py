"""Damaged inputs: nothing but the error tree comes out. And the fuzzer can find things."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.wire.errors import Malformed
from support.fuzz.engine import BLOCK_INPUTS, MEMORY_LIMIT_BYTES, Fuzzer, run_one
from support.fuzz.mutations import damage
from support.fuzz.targets import Target, make_targets
from support.sizes import size_cases

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@size_cases("count", quick=5_000, long=100_000)
def test_damaged_inputs_give_nothing_but_wire_errors(tmp_path: Path, count: int) -> None:
    proof = tmp_path / "proofs" / "fuzz.md"
    done = run_script(
        "--count", str(count), "--seed", "1", "--processes", "2", "--quiet", "--report", str(proof)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{count:,} inputs in .* 0 findings$", done.stdout, re.MULTILINE)
    rows = re.findall(r"\| (.+?) \| [\d,]+ \| ([\d,]+) \| ([\d,]+) \| 0 \|\n", done.stdout)
    assert len(rows) == 7
    for name, refused, accepted in rows:
        # A target of which everything is refused, or nothing, is not looking at the right place.
        assert int(refused.replace(",", "")) > count // 200, name
        assert int(accepted.replace(",", "")) > count // 200, name
    text = proof.read_text()
    assert text.startswith("# Proof")
    assert f"`scripts/fuzz.py --count {count}" in text, "a proof says how it was really made"


def test_a_decoder_that_fails_is_found() -> None:
    def decode(data: bytearray, _dice: random.Random) -> None:
        if data[0] & 1:
            raise Malformed("as it should be")
        data[200] = 0

    target = Target("planted", 1, [bytes(range(100))], decode)
    outcome = Fuzzer([target]).run_block(seed=1, block=0)
    assert outcome.inputs == BLOCK_INPUTS
    assert outcome.counts["planted", "failed"] > 0
    assert outcome.counts["planted", "refused"] > 0
    assert "IndexError" in outcome.findings[0]
    assert "--replay 'planted'" in outcome.findings[0]


def test_a_decoder_that_takes_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks_bytes = iter((100_000_000, 100_000_000 + MEMORY_LIMIT_BYTES + 1))
    monkeypatch.setattr("support.fuzz.engine.peak_memory_bytes", lambda: next(peaks_bytes))
    target = Target("greedy", 1, [b"seed"], lambda _data, _dice: None)
    outcome = Fuzzer([target]).run_block(seed=1, block=3)
    assert outcome.findings == ["block 3: memory grew by 64 MiB"]


def test_the_same_seed_gives_the_same_inputs() -> None:
    seeds = [bytes(range(50)), bytes(80)]
    first, second, third = (
        [bytes(damage(seeds, dice)) for _ in range(200)]
        for dice in (random.Random("1/7"), random.Random("1/7"), random.Random("1/8"))
    )
    assert first == second
    assert first != third


def test_seeds_reach_the_inside_of_their_decoder() -> None:
    targets = make_targets()
    assert len(targets) == 7
    for target in targets:
        dice = random.Random(1)
        results = [run_one(target, bytearray(seed), dice)[0] for seed in target.seeds * 3]
        assert results.count("failed") == 0, target.name
        # Not all: bombs and liars are there to be refused; headers are also read as markers.
        assert results.count("accepted") >= len(results) / 3, target.name


def test_an_input_can_be_replayed() -> None:
    done = run_script("--replay", "frames", "ffffffff")
    assert (done.returncode, done.stdout.strip()) == (0, "refused")
