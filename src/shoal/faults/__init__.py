"""Misfortune on purpose: a timeline of faults, and who brings them about.

`timeline` says when which fault begins and ends (pure), `executor` does it to the `targets` and
writes down what really happened, and `network` holds the links of a run, which `zones` join.
"""
