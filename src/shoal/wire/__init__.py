"""Bytes to Kafka messages and back, without I/O.

Nothing here opens a socket, sleeps or reads a clock. For any input the only errors raised are those
of `shoal.wire.errors`, and nothing is allocated only because a peer announced it. Import the
modules that you need: this package imports none.
"""
