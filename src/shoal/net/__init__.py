"""Connections of our own: the control channel between a run's driver and its workers.

Imports only `model`. What is read from a socket is checked here, so that the rooms above
never see a message that is too long, too early, of an unknown kind or of a wrong shape.
"""
