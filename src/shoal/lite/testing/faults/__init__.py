"""Faults on purpose: links that are cut or slow, disks that fail, requests that go wrong.

A cluster's supervisor knows all faults there are (`plan`) and tells each node its part over a
channel that only the two of them have (`channel`); a node does what it is told (`links`,
`request_faults`, and `shoal.lite.storage.disk` for its disk).
"""
