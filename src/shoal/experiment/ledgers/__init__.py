"""The ledgers of a run: compacted at its end, and on other file systems."""
