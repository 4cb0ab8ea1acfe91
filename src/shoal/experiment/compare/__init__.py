"""Runs side by side: measures, comparisons and sweeps."""
