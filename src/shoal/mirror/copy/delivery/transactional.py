"""Transactional delivery: batches and checkpoints are written in transactions; pure.

Rules:
- Batches are taken from the head of the queue into a transaction, and leave the queue when it is
  committed. After a failed transaction the partition returns to its last committed position
  (`rewind`) and fetches from the source again.
- The CRC is checked before a batch is taken: a damaged batch would abort the transaction of all
  partitions. The pieces of one batch are sent in one transaction.
- Old records, for which idempotent delivery is not safe, are copied in large transactions
  (`BACKFILL_BYTES`, `BACKFILL_S`), because each one costs a marker. A partition is handed over to
  idempotent delivery between two transactions, once all records of the last one were young enough,
  or nothing is left to copy (`can_hand_over`).
- Within a transaction batches are contiguous at the target, and between two transactions there is
  only the marker of the first. Any other gap means another producer. An offset below acknowledged
  ones fails the transaction: the topic may have been recreated.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from shoal.client.codes import Code
from shoal.client.errors import error_for
from shoal.client.results import ProduceResult
from shoal.mirror.copy.delivery.names import TRANSACTIONAL
from shoal.mirror.copy.partition import Delivery, Outgoing, PartitionCopier, ResumePoint
from shoal.mirror.offsets.offset_map import MapWriter

# A transaction of old records ends at this size or age, or when nothing can be added.
BACKFILL_BYTES: Final = 8 << 20
BACKFILL_S: Final = 5.0


# Errors of the transaction, not of the batch: a new producer epoch solves them.
TRANSACTION_ERRORS: Final = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
        Code.TRANSACTION_ABORTABLE,
    }
)


@dataclass(slots=True)
class TransactionalDelivery(Delivery):
    """The open transaction of one partition, which `position` and queue include.

    The transactional session writes the headers of batches.
    """

    name: ClassVar[str] = TRANSACTIONAL

    _taken: int = 0  # batches at the head of the queue that are in the open transaction
    _taken_bytes: int = 0
    _expected: int = -1  # expected target offset of the next batch; -1 while unknown
    # Target offsets between the checkpoint and the first batch of a session: markers and aborted
    # batches, or data of another producer.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    # The oldest batch of the last transaction; -1 before the first one.
    _oldest_ms: int = -1

    def due_offset(self, outgoing: Outgoing) -> int:
        # Unknown: markers take offsets too. `on_written` declares it before the commit.
        return -1

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def has_more(self) -> bool:
        return self.mirror.can_send and len(self.mirror.queue.batches) > self._taken

    @property
    def is_at_end(self) -> bool:
        """Whether all that can be read from the source is taken."""
        mirror = self.mirror
        return not self.has_more and 0 <= mirror.last_stable_offset <= mirror.queued_until

    def can_hand_over(self, old_before_ms: int) -> bool:
        """Whether idempotent delivery may continue: everything is committed, and what follows is
        young, or comes later."""
        if self._taken or not self.mirror.can_send:
            return False
        return self.is_at_end or self._oldest_ms >= old_before_ms > 0

    def take(self, room_bytes: int) -> list[Outgoing]:
        """Take the next batches for the open transaction: at least one, at most `room_bytes`."""
        taken: list[Outgoing] = []
        if not self.mirror.can_send:
            return taken
        for outgoing in list(self.mirror.queue.batches)[self._taken :]:
            room_bytes -= outgoing.size
            if taken and room_bytes < 0 and not outgoing.is_later_piece:
                break
            if self.mirror.detect_damage(outgoing):
                break
            self.mirror.mark_sent(outgoing)
            outgoing.may_be_written = True  # until its transaction ends
            self._taken += 1
            self._taken_bytes += outgoing.size
            taken.append(outgoing)
        self.mirror.refetch_damaged()
        return taken

    def on_written(self, outgoing: Outgoing, result: ProduceResult) -> None:
        """The target acknowledged a batch of the open transaction."""
        outgoing.is_in_flight = False
        self.mirror.queue.in_flight -= 1
        offset = result.base_offset
        if 0 <= offset < self.mirror.target_offset:
            # The topic may have been recreated: abort the transaction, so that nothing is added.
            self.mirror.suspect_loss(offset)
            raise error_for(
                Code.INCONSISTENT_TOPIC_ID,
                topic=self.mirror.target.topic,
                partition=self.mirror.target.partition,
                message=f"a batch is at offset {offset}, below {self.mirror.target_offset}",
            )
        if offset >= 0:
            if self._expected == -1:
                if offset > self.mirror.target_offset:
                    self.gaps.append((self.mirror.target_offset, offset))
            elif offset != self._expected:
                self.mirror.count_displaced(offset, self._expected)
            outgoing.target_offset = offset
            if outgoing.is_re_encoded:
                self.mirror.declare_at(offset)
            self.mirror.target_offset = self._expected = offset + outgoing.record_count

    def close_gap(self, gap: tuple[int, int], *, has_data: bool) -> None:
        """What is in a gap of `gaps` is known: markers and aborted batches only, or data."""
        self.gaps.remove(gap)
        if has_data:
            self.mirror.count_displaced(gap[1], gap[0])

    @property
    def next_position(self) -> int:
        """The next source offset after the open transaction."""
        if len(self.mirror.queue.batches) > self._taken:
            return self.mirror.queue.batches[self._taken].source_offset
        return self.mirror.queued_until

    def extend_map(self) -> MapWriter | None:
        """Return the offset map as it will be when the open transaction is committed."""
        if self.mirror.offsets is None:
            return None
        extended = self.mirror.offsets.copy()
        for outgoing in list(self.mirror.queue.batches)[: self._taken]:
            if outgoing.target_offset >= 0:
                extended.add(outgoing.spans, outgoing.target_offset)
        extended.advance_to(self.next_position)
        return extended

    def on_committed(self, offsets: MapWriter | None = None) -> None:
        """The open transaction is committed and visible; `offsets` is from `extend_map`."""
        self.mirror.offsets = offsets
        taken = list(self.mirror.queue.batches)[: self._taken]
        self._oldest_ms = min((each.batch.max_timestamp for each in taken), default=-1)
        if self._taken and self._expected >= 0:
            self._expected += 1  # its marker
        for _ in range(self._taken):
            self.mirror.drop_first()
        self._taken = self._taken_bytes = 0

    def rewind(self, source_offset: int, target_offset: int) -> None:
        """Drop all batches that are not committed."""
        self.mirror.drop_queue(ResumePoint(source_offset, 0, target_offset))
        self._taken = self._taken_bytes = self.mirror.queue.in_flight = 0
        self._expected = -1


TransactionalMirror: TypeAlias = PartitionCopier[TransactionalDelivery]
