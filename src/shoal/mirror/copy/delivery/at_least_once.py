"""One partition of a mirror that delivers at least once; pure.

Rules:
- Batches carry no producer id, so a target of any kind takes them, and none remembers them.
- One batch is in flight: what is repeated after an answer that was lost stands right behind its
  first copy, and nothing is out of order.
- After a kill the copy goes on at the last checkpoint, a second old: what was copied since comes
  once more.
"""

from dataclasses import dataclass
from typing import Final

from shoal.client.produce.sequencing import Identity
from shoal.mirror.copy.partition import Outgoing, PartitionMirror
from shoal.mirror.copy.rewrite import prepare
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

NOBODY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(slots=True)
class RepeatingMirror(PartitionMirror):
    """The state of one partition."""

    in_flight_limit: int = 1

    def _number(self, outgoing: Outgoing) -> None:
        prepare(outgoing.batch, NOBODY, NO_SEQUENCE)
        outgoing.base_sequence = NO_SEQUENCE
        self._enqueue(outgoing)

    def _placed(self, outgoing: Outgoing) -> None:
        if outgoing.target_offset >= 0:
            if outgoing.target_offset < self.target_offset:
                self._fall_back(outgoing.target_offset)
            elif outgoing.target_offset > self.target_offset:
                self._fell_back_to = -1  # who wrote what is between is not known
                ahead = outgoing.target_offset - self.target_offset
                if not _may_be_own(outgoing, ahead):
                    self._displaced(outgoing.target_offset, self.target_offset)
            self.target_offset = outgoing.target_offset
            self._map(outgoing.spans)
            self.target_offset += outgoing.batch.record_count


def _may_be_own(outgoing: Outgoing, count: int) -> bool:
    """Whether so many records before a batch may be copies of it: one for each unsure try."""
    copies, rest = divmod(count, outgoing.batch.record_count)
    return outgoing.is_unsure and not rest and copies < outgoing.tries
