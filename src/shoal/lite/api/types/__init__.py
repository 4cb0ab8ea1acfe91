"""The types of requests and answers, for the type checker: see `scripts/api_types.py`."""
