"""Producers: schedule, batches, drivers, outcomes."""
