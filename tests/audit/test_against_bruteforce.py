"""The judge against an independent one, on runs in which anything may have happened."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.folder import open_ledger
from shoal.audit.judge import Sizes, audit
from shoal.model.result import Result
from support.audit_bruteforce import Judge
from support.audit_chaos import chaotic_runs
from support.audit_ledgers import History

SIZES = st.sampled_from(
    [Sizes(), Sizes(rows_per_cell=1, rows_per_walk=1, offsets_per_cell=1), Sizes(5, 4, 3)]
)


def judged(history: History, sizes: Sizes, **options: Any) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        run = history.write(Path(folder) / "run", **options)
        return audit(open_ledger([run]), sizes=sizes)


@given(history=chaotic_runs(), sizes=SIZES, rows_per_segment=st.sampled_from([2, 1000]))
def test_findings_and_metrics_are_those_of_the_brute_force_judge(
    history: History, sizes: Sizes, rows_per_segment: int
) -> None:
    result = judged(history, sizes, rows_per_segment=rows_per_segment)
    for group, found in result.groups.items():
        expected = Judge(history, group)
        counts = {name: finding.count for name, finding in found.findings.items()}
        assert counts == expected.findings()
        metrics = found.metrics.to_json()
        wanted = expected.metrics()
        assert {name: metrics[name] for name in wanted} == wanted
        assert metrics["K"] <= metrics["F"] <= 2 * metrics["K"]
        assert metrics["ok"] == sum(metrics[n] for n in ("delivered_ok", "lost_ok", "pending_ok"))
