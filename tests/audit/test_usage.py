"""What the driver receives: each kind of part has a term of the bound."""

from pathlib import Path

from shoal.audit.audit import audit, run_here
from shoal.audit.parts import PartKind
from shoal.audit.read.folder import open_ledger
from shoal.audit.usage import GROWS_WITH, DriverUsage
from support.audit.ledgers import clean_run


def test_every_kind_of_part_says_what_it_grows_with() -> None:
    assert set(GROWS_WITH) == set(PartKind)


def test_usage_counts_every_part_once(tmp_path: Path) -> None:
    ledger = open_ledger([clean_run().write(tmp_path / "run")])
    usage = DriverUsage()
    assert audit(ledger, usage.watch(run_here)) == audit(ledger)
    head, *lines = usage.lines()
    sizes = [int(line.split()[0].replace(",", "")) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert int(head.split()[0].replace(",", "")) == sum(sizes)
    assert any("tally: grows with cells * streams" in line for line in lines)
