"""What a leader knows of one follower, from its fetches alone."""

from shoal.lite.replication.messages import ReplicaFetch

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
# Longer ago than any time-out.
_NEVER_MS = -(1 << 62)


class Peer:
    """A follower as its leader sees it."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "fetched_leader_end",
        "fetched_ms",
        "start_offset",
        "told_high_watermark",
        "told_start_offset",
    )

    def __init__(self, broker_id: int, now_ms: int, *, is_in_sync: bool) -> None:
        """Nothing is known of its log until it fetches in the leader's epoch.

        Who is in sync when the leader begins has the full time to show that it still is.
        """
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self.start_offset = UNKNOWN_OFFSET
        self.end_offset = UNKNOWN_OFFSET
        self.caught_up_ms = now_ms if is_in_sync else _NEVER_MS
        self.fetched_ms = _NEVER_MS
        self.fetched_leader_end = UNKNOWN_OFFSET
        self.told_high_watermark = UNKNOWN_OFFSET
        self.told_start_offset = UNKNOWN_OFFSET

    def fetched(
        self, now_ms: int, fetch: ReplicaFetch, *, broker_epoch: int, leader_end: int
    ) -> None:
        """It fetches from its end, so it has everything below.

        A follower that now asks for what was the leader's end at its last fetch was caught up
        at that time: with many small writes no follower would ever be seen at the very end.
        """
        if fetch.offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.fetched_leader_end != UNKNOWN_OFFSET and fetch.offset >= self.fetched_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.broker_epoch = broker_epoch
        self.start_offset = fetch.log_start_offset
        self.end_offset = fetch.offset
        self.fetched_leader_end = leader_end
        self.fetched_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms
