"""Results of client calls, by partition.

Rules of this file:
- The outcome of a produce has three values, see `shoal.model.findings.Outcome`: an *ok* batch is
  in the log, a *failed* one is not, an *unknown* one may be. It is *failed* only if every attempt
  was refused before the append or was not sent.
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
    """The result for one batch; offsets are -1 if the broker returned none."""

    outcome: Outcome
    error_code: int = Code.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    cause: ClientError | None = None

    @property
    def offset(self) -> int:
        """The offset of the batch, or of the record if this is the result of one record."""
        return self.base_offset

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def outcome_unknown(self) -> bool:
        return self.outcome is Outcome.UNKNOWN

    def error(self, tp: TopicPartition) -> ClientError:
        """The error of a result that is not ok."""
        if self.cause is not None:
            return self.cause
        return error_for(
            self.error_code,
            topic=tp.topic,
            partition=tp.partition,
            message=self.error_message,
        )


class ListedOffset(NamedTuple):
    """The offset for a timestamp; -1 if no record is as new as the timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int
