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

from shoal.client.delivery import Identity
from shoal.mirror.core import Outgoing, PartitionMirror
from shoal.mirror.rewrite import prepare
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

NOBODY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(slots=True)
class RepeatingMirror(PartitionMirror):
    """The state of one partition."""

    in_flight_limit: int = 1
    _has_placed: bool = False  # before that, what an earlier start wrote last may be ahead

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
                # One that was sent again may stand behind its own first copy.
                if self._has_placed and outgoing.tries == 1:
                    self._displaced(outgoing.target_offset, self.target_offset)
            self._has_placed = True
            self.target_offset = outgoing.target_offset
            self._map(outgoing.spans)
            self.target_offset += outgoing.batch.record_count
