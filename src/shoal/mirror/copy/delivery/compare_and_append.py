"""Delivery to Kafka Lite by compare-and-append: batches keep their offsets; pure.

Rules:
- Batches keep their source offsets, including gaps. Only the batch inside which the copy starts is
  re-encoded. Batches carry no producer id and keep the append time of the source's broker.
- One request is in flight, with as many batches as fit. It names the expected log end of the
  target and is written completely or not at all.
- After a lost response, a log end that equals the end of an unanswered request means that this
  request succeeded. Any other unexpected end has another cause and parks the partition.
- If a mirror with a higher epoch has taken over, this one parks the partition.
- A start reads the source again from the first offset of the target's last batch. Existing records
  are skipped. A record of that batch that differs from the source's parks the partition, because
  another producer has then written in the place of source records.
"""

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from shoal.client.codes import Code, facts_of
from shoal.client.errors import error_for
from shoal.client.produce.compare_and_append import AppendRequest, AppendResult
from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND
from shoal.mirror.copy.partition import (
    TOO_LARGE,
    Delivery,
    Outgoing,
    PartitionCopier,
    ResumePoint,
)
from shoal.mirror.copy.rebatch import BatchGroup
from shoal.mirror.copy.rewrite import (
    find_difference,
    prepare_to_append,
    split_in_half,
    split_to_limit,
)
from shoal.mirror.run.remedies import remedy_for
from shoal.model.findings import Outcome
from shoal.wire.batch import Batch
from shoal.wire.plain_batches import NO_NUMBERS
from shoal.wire.records.re_encode import trim


@dataclass(slots=True)
class AppendDelivery(Delivery):
    """The requests of one partition, whose `target_offset` is the target's log end offset."""

    name: ClassVar[str] = COMPARE_AND_APPEND
    keeps_offsets: ClassVar[bool] = True

    mirror_epoch: int = 0
    # The target's log end at the start, and the log end up to which it was compared with the
    # source before. Records in between are compared now (`tail` is the last batch).
    existing_until: int = -1
    agreed_end: int = -1
    tail: Batch | None = None  # the target's last existing batch, as stored
    _unknown_ends: set[int] = field(default_factory=set)  # ends of requests without a response

    @property
    def idle_resume_point(self) -> ResumePoint:
        until = self.mirror.queued_until
        # A checkpoint must not cover records that are not compared yet.
        is_compared = until >= self.existing_until
        return ResumePoint(until, 0, self.mirror.target_offset if is_compared else self.agreed_end)

    def count_lost_below(self, first: int) -> int:
        return max(0, first - max(self.mirror.position, self.existing_until))

    def _trim_existing(self, batch: Batch) -> tuple[Batch | None, bool]:
        """Drop the records that the target has; False if the target has other records there."""
        if batch.base_offset >= self.existing_until:
            return batch, True
        offset = None if self.tail is None else find_difference(batch, self.tail)
        if offset is not None:
            self.mirror.park(
                f"the target's record at offset {offset} differs from the source's: another "
                "producer has written to the target in the place of source records",
                "compare both topics with `shoal mirror verify`, then delete the target topic: "
                "it is filled again",
            )
            return None, False
        if batch.next_offset <= self.existing_until:
            self.mirror.counts.already_there += batch.record_count
            return None, True
        self.mirror.counts.split += 1
        left = trim(batch, from_offset=self.existing_until)
        self.mirror.counts.already_there += batch.record_count - (left.record_count if left else 0)
        return left, True

    def pass_on(self, records: memoryview) -> int:
        mirror = self.mirror
        if mirror.position < self.existing_until:
            return 0
        return mirror.queue_plain(records, NO_NUMBERS._replace(limit_bytes=mirror.limit_bytes))

    def accept(self, group: BatchGroup) -> bool:
        source_offset = group.source_offset
        for whole in group.batches:
            prepare_to_append(whole, max(whole.base_offset, source_offset))
            batch, is_good = self._trim_existing(whole)
            if not is_good:
                return False
            if batch is None:
                continue
            if batch.next_offset > group.next_offset:
                self.mirror.park(
                    f"the handler returned too many records for the batch at {source_offset}",
                    "change the handler to return at most as many records as it gets",
                )
                return False
            pieces = list(split_to_limit(batch, self.mirror.limit_bytes, keep_offsets=True))
            self.mirror.counts.split += len(pieces) - 1
            is_re_encoded = group.is_re_encoded or batch is not whole or len(pieces) > 1
            for piece in pieces:
                self.mirror.enqueue(
                    Outgoing(piece, source_offset=source_offset, is_re_encoded=is_re_encoded)
                )
                source_offset = piece.next_offset
        return True

    def halve(self, outgoing: Outgoing) -> list[Outgoing]:
        first, second = split_in_half(outgoing.batch, keep_offsets=True)
        return [
            Outgoing(first, source_offset=outgoing.source_offset, is_re_encoded=True),
            Outgoing(second, source_offset=second.base_offset, is_re_encoded=True),
        ]

    def due_offset(self, outgoing: Outgoing) -> int:
        return outgoing.batch.base_offset

    def next_unit(self, now: float, room_bytes: int) -> list[Outgoing]:
        """Return the batches of the next request; empty if none can be sent now."""
        queue = self.mirror.queue
        if not self.mirror.can_send or queue.in_flight or now < queue.not_before:
            return []
        unit: list[Outgoing] = []
        for outgoing in queue.batches:
            room_bytes -= outgoing.size
            if unit and room_bytes < 0:
                break
            unit.append(outgoing)
        for outgoing in unit:
            self.mirror.mark_sent(outgoing)
        return unit

    def append_request(self, unit: list[Outgoing]) -> AppendRequest:
        batches = [outgoing.batch.view for outgoing in unit]
        return AppendRequest(self.mirror.target_offset, self.mirror_epoch, batches)

    def on_append_result(self, unit: list[Outgoing], result: AppendResult, *, now: float) -> None:
        """Process the result of one request."""
        for outgoing in unit:
            outgoing.is_in_flight = False
        self.mirror.queue.in_flight = 0
        end = unit[-1].batch.next_offset
        if result.is_ok:
            self.mirror.backoff.reset()
            self._advance_to(end)
        elif result.is_mismatch:
            self._on_end_mismatch(result.log_end)
        elif result.outcome is Outcome.UNKNOWN:
            self._unknown_ends.add(end)
            for outgoing in unit:
                outgoing.may_be_written = True
            self.mirror.queue.back_off(now)
        else:
            self._on_append_error(unit, result, now)

    def _on_end_mismatch(self, end: int) -> None:
        if end in self._unknown_ends:
            self._advance_to(end)
            return
        self.mirror.suspect_target(
            f"the target's log ends at {end}, not at {self.mirror.target_offset}: "
            "another producer writes to it, or it has lost records",
            "let only one mirror write there; compare both topics with `shoal mirror verify`",
        )

    def _advance_to(self, end: int) -> None:
        self._unknown_ends.clear()
        self.mirror.target_offset = end
        batches = self.mirror.queue.batches
        while batches and batches[0].batch.next_offset <= end:
            self.mirror.drop_first()

    def _on_append_error(self, unit: list[Outgoing], result: AppendResult, now: float) -> None:
        code = result.error_code
        if result.is_fenced:
            self.mirror.park(
                "a newer mirror with the same name has taken over",
                "run only one mirror with this name",
            )
            return
        if code == Code.CORRUPT_MESSAGE and any(self.mirror.detect_damage(out) for out in unit):
            self.mirror.refetch_damaged()
            return
        largest = max(unit, key=lambda outgoing: outgoing.size)
        if code in TOO_LARGE:
            if largest.batch.record_count > 1:
                self.mirror.split(largest)
            else:
                tp = self.mirror.target
                error = error_for(code, topic=tp.topic, partition=tp.partition)
                self.mirror.wait_for_limit(largest, error, now)
            return
        if result.cause is None and not facts_of(code).retriable:
            tp = self.mirror.target
            error = error_for(
                code, topic=tp.topic, partition=tp.partition, message=result.error_message
            )
            self.mirror.park(
                f"the target refuses the batches from {unit[0].source_offset} on: {error}",
                remedy_for(code),
            )
            return
        self.mirror.queue.back_off(now)


AppendingMirror: TypeAlias = PartitionCopier[AppendDelivery]
