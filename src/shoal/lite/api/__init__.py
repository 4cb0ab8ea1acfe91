"""The requests that Kafka Lite serves: one module per API key, named by its number.

The docstring of each module states the versions it serves, its behaviour, the KIPs behind it and
what is missing. The last line of each module registers the handler; `table` imports all modules,
and ApiVersions answers from that registry.
"""
