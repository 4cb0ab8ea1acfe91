"""How the replicas of a partition stay equal, and what may be acknowledged and read. Pure.

    replica      one broker's replica: which role it has, and how it goes from one to the other
    leader       the leader: high watermark, in-sync set, waiting producers, verdicts on fetches
    follower     the follower: what to fetch next, what to do with the answer
    in_sync_set  the set as the controller confirmed it, and the one change that is on its way
    peers        what a leader knows of its followers
    waiting      producers who wait until all in-sync replicas have their records
    history      where two logs part ways, told by leader epochs
    messages     what goes between leader, follower, controller and shell

No clock, no disk, no network, no chance: events and the time come in by calls, and what there
is to do goes out as values. The shell of a broker and the simulation drive the same classes.

The rules are Apache Kafka's: KIP-101, 279 and 320 (leader epochs decide where logs part), the
diverging epoch in Fetch 12 (KIP-595), KIP-497 (the controller confirms in-sync sets; until it
has, the larger set counts), KIP-841 and 903 (fenced brokers and earlier incarnations stay out),
KIP-966 (nothing is committed by fewer than `min.insync.replicas`).
"""
