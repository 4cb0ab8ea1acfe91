"""Time-outs and limits of the quorum. Times are those of one member's clock, in ms."""

from dataclasses import dataclass

from shoal.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Settings of a member; those of one quorum should be the same.

    Apache Kafka's names for the first two are `controller.quorum.election.timeout.ms` and
    `controller.quorum.fetch.timeout.ms`.
    """

    # How long an election may take before the next begins. A random part, up to once more that
    # time, is added so that two candidates do not tie repeatedly. Long enough for many round
    # trips and syncs.
    election_timeout_ms: int = 600
    # How long a follower waits for an answer of the leader before it asks for an election. A
    # leader resigns when no majority has fetched from it for one and a half times that.
    fetch_timeout_ms: int = 2000
    # How long a leader holds a fetch for which it has no new data.
    fetch_max_wait_ms: int = 500
    # When an unanswered fetch is sent again: `fetch_max_wait_ms` plus the round trip over the
    # slowest link on which a node can still follow.
    request_timeout_ms: int = 1900
    # How long to wait after an error before the next try.
    retry_backoff_ms: int = 50
    # The most that one fetch response carries; it always carries at least one whole entry.
    fetch_max_bytes: int = 1024 * 1024
    snapshot_chunk_bytes: int = 1024 * 1024
    # The largest snapshot that a follower loads: it is held in memory.
    snapshot_max_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 < self.fetch_max_wait_ms < self.request_timeout_ms < self.fetch_timeout_ms:
            raise ConfigError(
                "fetch_max_wait_ms < request_timeout_ms < fetch_timeout_ms must hold, got "
                f"{self.fetch_max_wait_ms}, {self.request_timeout_ms}, {self.fetch_timeout_ms}"
            )
        if self.election_timeout_ms < 1 or self.retry_backoff_ms < 1:
            raise ConfigError("election_timeout_ms and retry_backoff_ms must be positive")

    @property
    def check_quorum_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_interval_ms(self) -> int:
        """How long after a voter's last fetch the leader sends it BeginQuorumEpoch again."""
        return self.fetch_timeout_ms // 2


DEFAULT_CONFIG = RaftConfig()
