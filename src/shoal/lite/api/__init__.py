"""The requests that Kafka Lite answers: one file per API key, the number first.

The header of each file says which versions it serves, how it behaves, which KIPs that follows
and what is missing. The last line of each registers it; `table` collects those lines, and
ApiVersions answers from the table.
"""
