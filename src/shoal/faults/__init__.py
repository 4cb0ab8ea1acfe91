"""Fault injection: a timeline of faults, and the code that applies them.

`timeline` defines when each fault begins and ends (pure), `executor` applies the faults to the
`targets` and records what really happened, and `network` is the network of a run with its `zones`.
"""
