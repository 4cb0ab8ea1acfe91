"""What a leader knows of one follower; its only source is the follower's fetches."""

from shoal.lite.replication.messages import ReplicaFetch

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
# Earlier than any time-out.
_NEVER_MS = -(1 << 62)


class FollowerProgress:
    """The progress of one follower, tracked by the leader."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "last_fetch_ms",
        "leader_end_at_fetch",
        "sent_high_watermark",
        "sent_start_offset",
        "start_offset",
    )

    def __init__(self, broker_id: int, now_ms: int, *, is_in_sync: bool) -> None:
        """Its log end offset is unknown until it fetches in the leader's epoch.

        A follower that is in the ISR when the leader is elected gets the full
        `replica.lag.time.max.ms` to show that it is still in sync.
        """
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self.start_offset = UNKNOWN_OFFSET
        self.end_offset = UNKNOWN_OFFSET
        self.caught_up_ms = now_ms if is_in_sync else _NEVER_MS
        self.last_fetch_ms = _NEVER_MS
        self.leader_end_at_fetch = UNKNOWN_OFFSET
        self.sent_high_watermark = UNKNOWN_OFFSET
        self.sent_start_offset = UNKNOWN_OFFSET

    def record_fetch(
        self, now_ms: int, fetch: ReplicaFetch, *, broker_epoch: int, leader_end: int
    ) -> None:
        """Record a fetch. The follower fetches at its log end offset, so it has all records below.

        A follower that now fetches at the leader's log end offset of its previous fetch was caught
        up at that time. Without this rule, no follower would be seen at the very end during a
        stream of small writes.
        """
        if fetch.offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif (
            self.leader_end_at_fetch != UNKNOWN_OFFSET and fetch.offset >= self.leader_end_at_fetch
        ):
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        if broker_epoch != self.broker_epoch:
            # A new process of the follower knows only what the previous one wrote to its disk.
            self.broker_epoch = broker_epoch
            self.sent_high_watermark = self.sent_start_offset = UNKNOWN_OFFSET
        self.start_offset = fetch.log_start_offset
        self.end_offset = fetch.offset
        self.leader_end_at_fetch = leader_end
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms
