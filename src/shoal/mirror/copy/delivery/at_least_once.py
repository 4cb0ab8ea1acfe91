"""One mirrored partition with at-least-once delivery; pure.

Rules:
- Batches carry no producer id, so every target accepts them, and none detects duplicates.
- One batch is in flight: a retry after a lost response follows directly behind its first copy, so
  order is kept.
- After a kill the copy resumes at the last checkpoint, which may be a second old: records copied
  since then are copied again.
"""

from dataclasses import dataclass
from typing import Final

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.mirror.copy.partition import Outgoing, PartitionMirror
from shoal.mirror.copy.rewrite import prepare
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

NO_IDENTITY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(slots=True)
class AtLeastOnceMirror(PartitionMirror):
    """The state of one partition with at-least-once delivery."""

    in_flight_limit: int = 1

    def _number(self, outgoing: Outgoing) -> None:
        prepare(outgoing.batch, NO_IDENTITY, NO_SEQUENCE)
        outgoing.base_sequence = NO_SEQUENCE
        self._enqueue(outgoing)

    def _advance_target_offset(self, outgoing: Outgoing) -> None:
        if outgoing.target_offset >= 0:
            if outgoing.target_offset < self.target_offset:
                self._suspect_loss(outgoing.target_offset)
            elif outgoing.target_offset > self.target_offset:
                self._regressed_to = -1  # the writer of the records in between is unknown
                ahead = outgoing.target_offset - self.target_offset
                if not _may_be_own(outgoing, ahead):
                    self._count_displaced(outgoing.target_offset, self.target_offset)
            self.target_offset = outgoing.target_offset
            self._map(outgoing.spans)
            self.target_offset += outgoing.batch.record_count


def _may_be_own(outgoing: Outgoing, count: int) -> bool:
    """Whether `count` records before a batch can be its own duplicates, one per lost response."""
    copies, rest = divmod(count, outgoing.batch.record_count)
    return outgoing.has_unknown_outcome and not rest and copies < outgoing.tries
