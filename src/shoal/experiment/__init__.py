"""One experiment from plan to verdict: plan (pure) → run → drain → scan → audit → report."""
