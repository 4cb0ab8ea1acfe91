"""Bytes to Kafka messages and back, without I/O.

Nothing here opens a socket, sleeps or reads a clock. Whatever bytes come in, the only
errors that come out are those of `shoal.wire.errors`, and nothing is allocated because a
peer merely announced it. Import the modules that you need: this package imports none.
"""
