"""At-least-once delivery: nothing detects duplicates; pure.

Rules:
- Batches carry no producer id, so every target accepts them, and none detects duplicates.
- One batch is in flight: a retry after a lost response follows directly behind its first copy, so
  order is kept.
- After a kill the copy resumes at the last checkpoint, which may be a second old: records copied
  since then are copied again.
"""

from typing import ClassVar, Final

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.mirror.copy.delivery.names import AT_LEAST_ONCE
from shoal.mirror.copy.partition import Delivery, Outgoing
from shoal.mirror.copy.rewrite import prepare
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

_NO_IDENTITY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class AtLeastOnceDelivery(Delivery):
    """Batches without a producer; has no state of its own."""

    __slots__ = ()

    name: ClassVar[str] = AT_LEAST_ONCE
    max_in_flight: ClassVar[int] = 1

    def prepare(self, outgoing: Outgoing) -> None:
        prepare(outgoing.batch, _NO_IDENTITY, NO_SEQUENCE)

    def on_acknowledged(self, outgoing: Outgoing) -> None:
        mirror, offset = self.mirror, outgoing.target_offset
        if offset < 0:
            return
        if offset < mirror.target_offset:
            mirror.suspect_loss(offset)
        elif offset > mirror.target_offset:
            mirror.regressed_to = -1  # the writer of the records in between is unknown
            if not _may_be_own(outgoing, offset - mirror.target_offset):
                mirror.count_displaced(offset, mirror.target_offset)
        mirror.target_offset = offset
        mirror.map_spans(outgoing.spans)
        mirror.target_offset += outgoing.record_count


def _may_be_own(outgoing: Outgoing, count: int) -> bool:
    """Whether `count` records before a batch can be its own duplicates, one per lost response."""
    copies, rest = divmod(count, outgoing.record_count)
    return outgoing.may_be_written and not rest and copies < outgoing.tries
