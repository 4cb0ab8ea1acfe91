"""Shoal's own network code: the control channel between a run's driver and its workers, and the
TCP proxy for network faults.

Imports only `model` and `runtime`. Everything read from a socket is checked here, so the packages
above never see a message that is too long, too early, of an unknown type or malformed.
"""
