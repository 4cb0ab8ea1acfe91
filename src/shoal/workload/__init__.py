"""The workload of a run: schedule, envelope, producers, consumers, scans, ledgers.

Nothing here depends on where it runs: a worker, or a standalone command, passes in a client, a
recorder and a control. Numpy, numba and Arrow are loaded when first used.
"""
