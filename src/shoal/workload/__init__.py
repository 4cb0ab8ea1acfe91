"""What is sent and what is received: schedule, envelope, producers, consumers, scans, ledgers.

Nothing here knows where it runs: a worker, or a command alone, hands in a client, a
recorder and a control. Numpy, numba and Arrow are loaded when first used.
"""
