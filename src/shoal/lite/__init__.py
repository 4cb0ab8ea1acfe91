"""Kafka Lite: a small Kafka in Python that every Kafka client can use.

`storage/` keeps raw record batches in files that Apache Kafka's tools can read, `metadata/` keeps
the metadata of the cluster, `partitions/` are the replicas of one broker, `api/` answers
one kind of request per file, `nodes/` are the processes of a cluster, and `cluster` is the
interface for programs. Importing this package imports none of them.

For programs: `shoal.lite.cluster`, in asyncio `shoal.lite.async_cluster`, in tests the fixtures of
`shoal.lite.pytest_plugin`. `shoal.lite.facade` writes and reads messages by eight plain calls.
"""
