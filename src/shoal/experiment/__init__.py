"""One experiment, from its plan to its verdict: plan, run, drain, scan, audit, report."""
