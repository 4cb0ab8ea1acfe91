"""What the calls of a client return about partitions.

Rules of this file:
- Producing is three-valued, as `shoal.model.findings.Outcome` has it: *ok* is in the log,
  *failed* is not, *unknown* may be. `failed` is only said when every try was refused before
  the append or never left us.
"""

from typing import Final, NamedTuple

from shoal.client.codes import Code
from shoal.client.errors import ClientError, error_for
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3


class ProduceResult(NamedTuple):
    """What became of one batch; offsets are -1 where the broker told none."""

    outcome: Outcome
    error_code: int = Code.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    cause: ClientError | None = None

    @property
    def offset(self) -> int:
        """Where it is; for one record of a batch, its own offset."""
        return self.base_offset

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def outcome_unknown(self) -> bool:
        return self.outcome is Outcome.UNKNOWN

    def error(self, tp: TopicPartition) -> ClientError:
        """The error behind a result that is not ok."""
        if self.cause is not None:
            return self.cause
        return error_for(
            self.error_code,
            topic=tp.topic,
            partition=tp.partition,
            message=self.error_message,
        )


class ListedOffset(NamedTuple):
    """An offset that a broker found; -1 where no record is as young as was asked for."""

    offset: int
    timestamp: int
    leader_epoch: int
