"""Fault injection: links that are cut or slow, disks that fail, requests that fail.

A cluster's supervisor keeps all faults (`plan`) and sends each node its own over a private channel
(`channel`); the node applies them (`shoal.lite.base.hooks` for links and requests,
`shoal.lite.storage.disk` for its disk).
"""
