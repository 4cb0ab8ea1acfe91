"""Consumer groups: the classic protocol of Apache Kafka, and the offsets that groups commit.

- `machine`: the members and the assignment of each group; pure, with `group`, `messages` and
  `timers`.
- `offsets`: the committed offsets of groups, and those of open transactions; pure.
- `records`: the formats of `__consumer_offsets`.
- `shard`: the groups of one partition of that topic: machine and offsets, with their log.
"""
