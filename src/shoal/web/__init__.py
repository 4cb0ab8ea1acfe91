"""`shoal serve`: a page of runs, clusters and mirrors, on this machine only.

It reads what runs, clusters and mirrors write (`events.jsonl`, `run.json`, `result.json`, ledgers)
and needs no connection to any of them. `access.py` decides who may read and act.
"""
