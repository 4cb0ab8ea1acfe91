"""Idempotent delivery: the target detects duplicates by the sequences of one producer; pure.

Rules:
- Each batch has its sequence. The producer id never changes: the sequence is what prevents
  duplicate batches.
- Until the target has acknowledged a first batch, exactly one is in flight, because a broker that
  does not know a producer accepts any first sequence.
- Batches behind a failed batch return as out of sequence. If the *oldest* batch is out of sequence,
  it is not just sent again: the mirror first queries the last sequence that the target has
  (`needs_last_sequence`, `on_last_sequence`).
- A mirror that resumes skips the records that the target already has, by their count. The last of
  them must equal the target's last record. A batch of which the target has the first records only
  is sent without them: the process before may have built other batches of the same records
  (`shoal.mirror.copy.depth`).
- If the source has deleted some of the records to be skipped, their number is not known: markers
  and compacted records take offsets too. Then the target's last record is searched in what is left
  (`shoal.mirror.copy.delivery.tail_search`), and the source is read again from its log start.
- If that shows while this process runs, nothing of its queue is in flight, and it resumes in the
  same way (`PartitionCopier.resume_reason`). As long as the target has none of the records of a
  batch, or all, retries keep their bytes.
- If another process has sent more than this one has read (`PartitionCopier.is_overtaken`), this one
  resumes in the same way, but only when nothing has been appended to the target for a while.
- A batch so old that the target does not remember its producer is sent alone: without producer
  state any sequence is accepted, and a lost batch would leave a gap. So is the next one, and the
  first one after a pause in which the target may have forgotten the producer.
"""

import logging
import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from shoal.client.produce.sequenced_queue import REMEMBERED_S, BrokerState, Decision, SendPolicy
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.mirror.copy.delivery.names import IDEMPOTENT
from shoal.mirror.copy.delivery.tail_search import TailSearch
from shoal.mirror.copy.partition import (
    IN_FLIGHT_LIMIT,
    Delivery,
    Outgoing,
    PartitionCopier,
    ResumePoint,
)
from shoal.mirror.copy.rebatch import BatchGroup
from shoal.mirror.copy.rewrite import drop_first_records, has_same_ending, prepare
from shoal.mirror.offsets.offset_map import OffsetSpan, split_spans
from shoal.wire.batch import Batch, sequence_after
from shoal.wire.plain_batches import Numbering

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class IdempotentDelivery(Delivery):
    """The sequences of one partition."""

    name: ClassVar[str] = IDEMPOTENT
    policy: ClassVar[SendPolicy] = SendPolicy(
        has_sequences=True,
        if_not_written=Decision.QUERY_LAST_SEQUENCE,
        if_maybe_written=Decision.QUERY_LAST_SEQUENCE,
        retries_unknown=True,
    )
    max_in_flight: ClassVar[int] = IN_FLIGHT_LIMIT

    identity: ProducerIdentity
    first_sequence: int = 0  # at the start
    already_there: int = 0  # records that are still to be skipped: the target has them
    tail: Batch | None = None  # the target's last existing batch, as stored
    is_known_at_start: bool = False  # whether the target's leader has state of this producer
    producer_expiration_ms: int = 0  # of the target; 0 if unknown
    _search: TailSearch | None = None  # while the number of records to be skipped is unknown
    # The last sequence of the target, if it is at the end of a batch that is not acknowledged.
    _fitting: int | None = None

    def set_start(self) -> None:
        queue = self.mirror.queue
        queue.next_sequence = self.first_sequence
        queue.is_established = self.is_known_at_start
        if self.producer_expiration_ms:
            queue.remembered_s = min(REMEMBERED_S, self.producer_expiration_ms / 2000)
            queue.forgotten_at = -math.inf  # the age of its last record is not known

    def pass_on(self, records: memoryview) -> int:
        mirror, queue = self.mirror, self.mirror.queue
        if self.already_there:
            return 0
        expiration_ms = self.producer_expiration_ms
        numbering = Numbering(*self.identity, queue.next_sequence, mirror.limit_bytes)
        if expiration_ms:
            numbering = numbering._replace(oldest_ms=mirror.fetched_ms - expiration_ms)
        size_bytes = mirror.queue_plain(records, numbering)
        if size_bytes:
            last = queue.batches[-1]
            queue.next_sequence = sequence_after(last.base_sequence, last.record_count)
        return size_bytes

    def accept(self, group: BatchGroup) -> bool:
        if self._search is not None:
            for batch in group.batches:
                self._search.add(batch)
            return True
        spans = group.spans
        for number, batch in enumerate(group.batches):
            if not self.already_there:
                spans = self.mirror.queue_pieces(batch, group, number, spans)
                continue
            if not number:
                self.mirror.last_resume_point = ResumePoint(
                    group.source_offset, self.mirror.queue.next_sequence, self.mirror.target_offset
                )
            passed, spans = split_spans(spans, batch.record_count)
            if not self._skip_existing(batch, passed, group.source_offset):
                return False
        return True

    def _skip_existing(self, batch: Batch, spans: list[OffsetSpan], source_offset: int) -> bool:
        """Skip the records of a batch that the target has: all of them, or the first ones."""
        mirror = self.mirror
        count = min(batch.record_count, self.already_there)
        is_last = count == self.already_there
        if is_last and self.tail is not None and not has_same_ending(batch, count, self.tail):
            mirror.park(
                f"the target's last {self.already_there} records differ from the source's at "
                f"offset {mirror.position}: the source has changed since they were copied",
                "compare both topics with `shoal mirror verify`, and mirror into a new topic",
            )
            return False
        there, left = split_spans(spans, count)
        mirror.map_spans(there)
        self._pass_over(count)
        if is_last:
            self.tail = None
        if count < batch.record_count:
            mirror.counts.split += 1
            rest = Outgoing(
                drop_first_records(batch, count),
                source_offset=source_offset,
                is_later_piece=True,
                is_re_encoded=True,
                spans=left,
            )
            self.prepare(rest)
            mirror.enqueue(rest)
        return True

    def _pass_over(self, count: int) -> None:
        """Advance past records that the target has."""
        self.already_there -= count
        self.mirror.counts.already_there += count
        self.mirror.target_offset += count
        queue = self.mirror.queue
        queue.next_sequence = sequence_after(queue.next_sequence, count)

    def prepare(self, outgoing: Outgoing) -> None:
        batch = outgoing.batch
        sequence = self.mirror.queue.number(outgoing, batch.record_count)
        prepare(batch, self.identity, sequence)
        if (
            self.producer_expiration_ms
            and batch.max_timestamp < self.mirror.fetched_ms - self.producer_expiration_ms
        ):
            outgoing.is_old = True
            self._count_unshielded()

    def _count_unshielded(self) -> None:
        if not self.mirror.counts.unshielded:
            _log.warning(
                "%s: the records are older than producer.id.expiration.ms of the target: they are "
                "sent one batch at a time, and a second mirror with this name would not be "
                "detected",
                self.mirror.target,
            )
        self.mirror.counts.unshielded += 1

    def halve(self, outgoing: Outgoing) -> list[Outgoing]:
        """Split a batch that is too large; its sequences are divided among the pieces."""
        pieces, sequence = outgoing.halve(), outgoing.base_sequence
        for piece in pieces:
            piece.base_sequence = sequence
            prepare(piece.batch, self.identity, sequence)
            sequence = sequence_after(piece.batch.last_sequence, 1)
        return pieces

    def on_acknowledged(self, outgoing: Outgoing) -> None:
        """Advance the target offset; a gap means that another producer writes there."""
        mirror, self._fitting = self.mirror, None
        if outgoing.is_old:
            mirror.queue.forgotten_at = -math.inf
        if outgoing.target_offset not in (-1, mirror.target_offset):
            if outgoing.target_offset < mirror.target_offset:
                mirror.suspect_loss(outgoing.target_offset)
            else:
                mirror.count_displaced(outgoing.target_offset, mirror.target_offset)
                mirror.regressed_to = -1
            mirror.target_offset = outgoing.target_offset
        if not outgoing.is_plain:
            mirror.map_spans(outgoing.spans)
        elif mirror.offsets is not None:
            mirror.offsets.extend(
                outgoing.source_offset, outgoing.record_count, mirror.target_offset
            )
        mirror.target_offset += outgoing.record_count

    @property
    def needs_last_sequence(self) -> bool:
        """Whether the target's last sequence must be queried before anything is sent."""
        return self.mirror.queue.needs_broker_state and self.mirror.can_send

    def on_last_sequence(self, last_sequence: int | None, *, now: float) -> None:
        """Continue after the last sequence that the target has of the mirror's producer."""
        mirror, queue = self.mirror, self.mirror.queue
        state = queue.on_last_sequence(last_sequence)
        queue.back_off(now)
        if state is BrokerState.FITS and self._is_asked_again(last_sequence):
            state = BrokerState.INSIDE
        if state is BrokerState.AHEAD:
            mirror.drop_queue(mirror.resume_point)
            mirror.is_overtaken = True
            mirror.request_resume("another mirror with the same name is ahead of this one")
        elif state is BrokerState.INSIDE:
            mirror.drop_queue(mirror.resume_point)
            mirror.request_resume(
                "another process of this mirror has sent the same records to the target in other "
                "batches"
            )
        elif state is BrokerState.BEHIND:
            mirror.suspect_target(
                "the target no longer has records that it acknowledged: "
                f"it expects another sequence than {queue.batches[0].base_sequence}",
                "compare both topics with `shoal mirror verify`; if records are lost, mirror into "
                "a new topic",
            )

    def _is_asked_again(self, last_sequence: int | None) -> bool:
        """Whether the target answers the same as before, about a batch that was sent since.

        That batch is then no duplicate for the target: another process has sent the same records
        in other batches, and one of them ends where this one ends.
        """
        batches, before = self.mirror.queue.batches, self._fitting
        is_of_queue = any(each.batch.last_sequence == last_sequence for each in batches)
        self._fitting = last_sequence if is_of_queue else None
        return is_of_queue and before == last_sequence

    @property
    def idle_resume_point(self) -> ResumePoint:
        # A later start has to search as well.
        source_offset = self.mirror.queued_until if self._search is None else self._search.begun
        return ResumePoint(
            source_offset, self.mirror.queue.next_sequence, self.mirror.target_offset
        )

    def on_dropped(self, first: Outgoing | None) -> None:
        queue = self.mirror.queue
        if first is not None:
            queue.next_sequence = max(0, first.base_sequence)
        queue.is_halted &= bool(queue.batches)

    def count_lost_below(self, first: int) -> int:
        if self.already_there and self.tail is not None:
            return 0  # not known yet: `_conclude_search` counts them
        return max(0, first - self.mirror.position - self.already_there)

    def on_deleted_below(self, first: int) -> None:
        if not self.already_there:
            return
        begun = self.mirror.position if self._search is None else self._search.begun
        if self.tail is None:
            # The target has deleted its records too: skip only what certainly is at the target.
            self._pass_over(min(first - begun, self.already_there))
        else:
            self._search = TailSearch(self.tail, begun, first, most=self.already_there)

    def on_fetch_end(self) -> None:
        mirror, search = self.mirror, self._search
        if search is None:
            return
        mirror.flush()
        if search.is_complete or mirror.position >= mirror.last_stable_offset:
            self._conclude_search(search)

    def _conclude_search(self, search: TailSearch) -> None:
        """Skip the records that the target has, from the source's log start on."""
        mirror, left = self.mirror, search.result
        if left is None:
            mirror.park(
                f"the source deleted its records below offset {search.first}, and its others do "
                "not show which of them the target has",
                "compare both topics with `shoal mirror verify`, and mirror into a new topic",
            )
            return
        if not left:
            mirror.report_lost(search.first, search.first - search.begun - self.already_there)
            self.tail = None
        self._search = None
        mirror.read_again(search.first)
        self._pass_over(self.already_there - left)


IdempotentMirror: TypeAlias = PartitionCopier[IdempotentDelivery]
