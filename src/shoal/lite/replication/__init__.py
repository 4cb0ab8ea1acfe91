"""Replication of one partition: which records are committed, acknowledged and readable. Pure.

    replica            one broker's replica: its role, and the change from one role to the other
    leader             the leader: high watermark, ISR, waiting producers, answers to fetches
    follower           the follower: what to fetch next, what to do with the answer
    in_sync_set        the ISR that the controller confirmed, and the one pending change
    follower_progress  what a leader knows of one follower
    waiting            producers that wait until all in-sync replicas have their records
    history            where two logs diverge, found by leader epochs
    fetch_sessions     incremental fetch sessions of consumers (KIP-227)
    messages           the values that leader, follower, controller and shell exchange

The classes use no clock, disk, network or randomness. Events and the time are passed in by calls;
the work to do is returned as values. The shell of a broker and the simulation drive the same
classes.

The rules are Apache Kafka's: KIP-101, 279 and 320 (leader epochs decide where logs diverge), the
diverging epoch in Fetch 12 (KIP-595), KIP-497 (the controller confirms ISR changes; until then the
larger set applies), KIP-841 and 903 (fenced brokers and earlier incarnations stay out of the ISR),
KIP-966 (nothing is committed by fewer than `min.insync.replicas`).
"""
