"""Consumer groups: the classic protocol of Apache Kafka, and the offsets that groups commit.

- `machine`: who is in a group, and which assignment counts; pure, with `group`, `messages` and
  `timers`.
- `offsets`: what was committed, by groups and by transactions; pure.
- `records`: the formats of `__consumer_offsets`.
- `shard`: the groups of one partition of that topic: machine and offsets, with their log.
"""
