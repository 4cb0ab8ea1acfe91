"""What plantings share: where to plant, and what a compacted topic excuses."""

from shoal.audit.self_test.synthetic_run import Name, SyntheticRun, name_of


def pick_message(run: SyntheticRun) -> Name | None:
    """Return a random message that is (still) in the logs and was delivered."""
    names = {name_of(line) for line in run.receipts}
    names &= {name_of(line) for line in run.logs[run.read]}
    names &= {name_of(line) for line in run.logs["source"]}
    names &= {name_of(line) for line in run.sends}
    return run.random.choice(sorted(names)) if names else None


def expect_unless_superseded(run: SyntheticRun, *found: str) -> set[str]:
    """Return the findings to expect: none if a log is compacted, since it may supersede."""
    return set() if any(scan["compacted"] for scan in run.scans) else set(found)
