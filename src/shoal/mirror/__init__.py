"""The mirror: record batches from one cluster to another as they are, headers rewritten.

    source ──fetch──► sieve (aborted, control) ──► handler ──► rewrite (header) ──produce──► target
                      └────── copy.partition: pure, one state machine per partition ─────┘

Needs no numpy, no Arrow and no Spark.
"""
