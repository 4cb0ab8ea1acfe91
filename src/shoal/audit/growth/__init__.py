"""Judges a run that grows: from the rows that are new, and in a process that continues."""
