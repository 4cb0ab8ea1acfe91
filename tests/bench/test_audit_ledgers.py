"""The ledgers of the audit's benchmarks are of today's format, and hold what is planted in them."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import audit_ledgers  # noqa: E402 - found by the path above

from shoal.audit.audit import audit  # noqa: E402
from shoal.audit.read.folder import open_ledger  # noqa: E402


def test_the_audit_finds_what_is_planted_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {"NOT_MIRRORED": 1_009, "UNDELIVERED": 503, "TWICE": 701, "LATE": 307}
    for name, every in planted.items():
        monkeypatch.setattr(audit_ledgers, name, every)
    run = audit_ledgers.write_run(tmp_path / "run", 20_000, 4)
    result = audit(open_ledger([run]))
    found = {name: finding.count for name, finding in result.findings.items()}
    for name, count in audit_ledgers.count_losses(20_000).items():
        assert found.pop(f"lost: {name.replace('_', '-')}") == count > 0
    assert found == {"reordered": 65, "poll skip": 168, "non-monotonic poll": 93}
