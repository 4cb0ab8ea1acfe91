"""Latencies, clocks, and the windows of faults."""
