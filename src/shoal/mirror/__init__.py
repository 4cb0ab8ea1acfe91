"""The mirror: copies record batches from one cluster to another and rewrites only their headers.

    source ──fetch──► sieve (aborted, control) ──► handler ──► rewrite (header) ──produce──► target
                      └────── copy.partition: pure, one state machine per partition ─────┘

Needs neither numpy nor Arrow nor Spark.
"""
