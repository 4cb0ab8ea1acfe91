"""The verdict on a run while it runs: which findings are certain already.

A run grows only at its ends: lines are added to the commit log, and the segments that they name
never change. So the ledgers up to a line of the commit log are the ledgers of a shorter run, which
the audit judges with the same tasks. What it finds there is raised if no later line can take it
back (`docs/guides/follow.md` gives the reason for each kind):

- Evidence of deliveries and answers is enough; scans, which come at the end, are not read. What
  only they show (losses, what vanished, order in logs, alterations) is for the audit at the end.
- An unexpected message is certain once all producers have ended, because one that is alive may
  still reserve its number.
- A broken checksum is certain without a mirror. With one, the scans may show that the mirror
  altered the record, which is another finding.
- A read before the commit is certain as long as all workers share one host and thus one clock: on
  several, more workers may widen the bound between clocks.

Rules:
- `RunFollower` is pure: it gets ledgers and a time, and returns events. Its state is the number of
  lines that it has judged, the answers about their rows (`growth.increments`), and the counts
  that it has raised. A look judges what new rows touch; its result is that of `find_certain`.
- Counts only rise. An event has the count of the finding in the group with the most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shoal.audit.audit import Runner, examine, find_assignment_starts, run_here
from shoal.audit.context import AuditContext, build_context
from shoal.audit.growth.increments import Increments
from shoal.audit.parts import PartKind
from shoal.audit.read.folder import Ledger
from shoal.audit.read.read import Piece
from shoal.audit.read.walk import GroupReaderKey
from shoal.audit.result.conclude import Evidence, conclude
from shoal.audit.result.latencies import Latencies
from shoal.audit.result.merge import Sinks, Summaries, Totals, add_cell
from shoal.audit.result.settle import settle_polls
from shoal.audit.result.streams import StreamTotals, reduce_streams
from shoal.audit.rules.polls import gather_steps
from shoal.model.events import FindingSeen
from shoal.model.findings import Finding
from shoal.model.result import FindingResult

# What deliveries, answers and what consumers recorded decide for good.
CERTAIN: Final = (
    Finding.DUPLICATE_SOURCE,
    Finding.DUPLICATE_TARGET,
    Finding.INCONSISTENT_OFFSET,
    Finding.ABORTED_READ,
    Finding.REUSED_SEQUENCE,
    Finding.NON_MONOTONIC_POLL,
    Finding.UNREADABLE,
    Finding.UNCOMMITTED_READ,
    Finding.UNEXPECTED,
    Finding.CORRUPTED,
)
READ_TABLES: Final = ("attempts", "receipts", "assignments", "transactions", "manifests", "keys")


@dataclass
class RunFollower:
    """Judges the ledgers of one run again and again, and reports what is new and certain."""

    runner: Runner = run_here
    position: int = 0  # lines of the commit logs that are judged
    raised: dict[str, int] = field(default_factory=dict)
    increments: Increments = field(default_factory=Increments)

    def judge(
        self,
        ledger: Ledger,
        now_us: int,
        *,
        receipts: Sequence[Piece],
        scratch: str | None = None,
    ) -> list[FindingSeen]:
        """Return an event for each finding whose count has risen.

        `receipts` are row groups with all receipts that were not there at the last look, in the
        order in which they were committed; `scratch` is for `examine`.
        """
        position = sum(len(folder.commits) for folder in ledger.folders)
        if position == self.position:
            return []
        found = self.find(ledger, receipts, scratch)
        self.position = position
        events = []
        for name, result in found.items():
            if result.count > self.raised.get(name, 0):
                self.raised[name] = result.count
                witness = dict(result.witness or {})
                events.append(FindingSeen(now_us, name, result.count, True, witness))
        return events

    def find(
        self, ledger: Ledger, receipts: Sequence[Piece], scratch: str | None = None
    ) -> dict[str, FindingResult]:
        """Return what `find_certain` does, from what is known and what is new."""
        known = _without_scans(ledger)
        if not (known.rows_of("attempts") or known.rows_of("receipts")):
            return {}
        context = replace(build_context(known), scratch=scratch)
        increments, run = self.increments, self.runner
        answers, lean = increments.judge_cells(known, context, run)
        walks = increments.walk(receipts, run, lean)
        begins = find_assignment_starts(known.small_table("assignments"))
        steps = gather_steps(walks, GroupReaderKey, begins)
        if any(part.kind is PartKind.UNSETTLED for parts in answers for part in parts):
            # What an offset proves depends on transactions in other cells. That is rare.
            whole = examine(known, run, scratch=scratch)
            polls = replace(settle_polls(steps, ()), contested=whole.polls.contested)
            return _choose_certain(known, replace(whole, polls=polls))
        totals, streams, summaries = Totals(), StreamTotals(), Summaries()
        for parts in answers:
            add_cell(parts, Sinks(totals, streams, summaries))
        of_offsets = increments.judge_offsets(known, summaries, run, lean)
        polls = settle_polls(steps, of_offsets)
        add_cell(reduce_streams(streams, lean, groups=lean.groups), Sinks(totals))
        return _choose_certain(known, Evidence(lean, totals, polls, Latencies()))


def _without_scans(ledger: Ledger) -> Ledger:
    tables = ledger.tables.items()
    kept = {table: groups if table in READ_TABLES else () for table, groups in tables}
    return replace(ledger, tables=kept)


def find_certain(
    ledger: Ledger, runner: Runner = run_here, scratch: str | None = None
) -> dict[str, FindingResult]:
    """Return the findings that the ledgers show and no longer ledgers of this run take back."""
    if not (ledger.rows_of("attempts") or ledger.rows_of("receipts")):
        return {}
    known = _without_scans(ledger)
    return _choose_certain(known, examine(known, runner, scratch=scratch))


def _choose_certain(known: Ledger, evidence: Evidence) -> dict[str, FindingResult]:
    result = conclude(known, evidence)
    ruled_out = _rule_out(known, evidence.context)
    certain: dict[str, FindingResult] = {}
    for of_group in result.groups.values():
        for finding in CERTAIN:
            found = of_group.findings.get(finding.value)
            if found is None or finding in ruled_out:
                continue
            if found.count > certain.get(finding.value, FindingResult(0)).count:
                certain[finding.value] = found
    return certain


def _rule_out(ledger: Ledger, context: AuditContext) -> set[Finding]:
    """Return the kinds that later lines of this run may take back."""
    found: set[Finding] = set()
    if context.has_mirror:
        found.add(Finding.CORRUPTED)
    hosts = {str(line.get("host")) for line in ledger.commits("lease")}
    if len(hosts) > 1:
        found.add(Finding.UNCOMMITTED_READ)
    if not _have_all_ended(ledger, context):
        found.add(Finding.UNEXPECTED)
    return found


def _have_all_ended(ledger: Ledger, context: AuditContext) -> bool:
    """Whether every producer that reserved or sent anything has ended."""
    rows: Sequence[Mapping[str, Any]] = ledger.small_table("manifests")
    ended = {(row["producer"], row["incarnation"]) for row in rows}
    begun = {(stream.producer, stream.incarnation) for stream in context.extents}
    return bool(ended) and begun <= ended
