"""Time-outs and limits of the quorum. Times are those of one member's clock, in ms."""

from dataclasses import dataclass

from shoal.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Settings of a member; those of one quorum should be the same.

    Apache Kafka's names for the first two are `controller.quorum.election.timeout.ms` and
    `controller.quorum.fetch.timeout.ms`.
    """

    # How long an election may take before another begins; each is lengthened at random up to
    # twice that, so that two candidates do not tie again and again. Many round trips and syncs.
    election_timeout_ms: int = 600
    # How long a follower waits for an answer of the leader before it asks for an election. A
    # leader resigns when it was not fetched from by a majority for one and a half times that.
    fetch_timeout_ms: int = 2000
    # How long a leader holds a fetch when it has nothing to give.
    fetch_max_wait_ms: int = 500
    # When a fetch without an answer is sent again: longer than a leader may hold it, by the round
    # trip over the slowest link on which a node can still follow.
    request_timeout_ms: int = 1900
    # How long to wait after a refusal before the next try.
    retry_backoff_ms: int = 50
    # What one answer to a fetch carries; one entry is always carried whole.
    fetch_max_bytes: int = 1024 * 1024
    snapshot_chunk_bytes: int = 1024 * 1024
    # What a snapshot of a leader may take up: it is held in memory.
    snapshot_max_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 < self.fetch_max_wait_ms < self.request_timeout_ms < self.fetch_timeout_ms:
            raise ConfigError(
                "fetch_max_wait_ms, request_timeout_ms and fetch_timeout_ms must rise: "
                f"{self.fetch_max_wait_ms}, {self.request_timeout_ms}, {self.fetch_timeout_ms}"
            )
        if self.election_timeout_ms < 1 or self.retry_backoff_ms < 1:
            raise ConfigError("election_timeout_ms and retry_backoff_ms must be positive")

    @property
    def check_quorum_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_interval_ms(self) -> int:
        """How long a voter may not fetch before its leader tells it again who leads."""
        return self.fetch_timeout_ms // 2


DEFAULT_CONFIG = RaftConfig()
