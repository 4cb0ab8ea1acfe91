"""One partition of a mirror that writes to Kafka Lite by compare-and-append; pure.

Rules:
- Batches keep their source offsets, gaps and all; only a batch in which the copy begins is
  encoded anew. They carry no producer ids, and keep the append time of the source's broker.
- One request at a time, with as many batches as it has room for. It names the end that the
  target must have, and is written whole or not at all.
- After an answer that was lost, an end that is one of the lost requests' is taken for its
  success. Any other end that was not expected is somebody else's doing, and parks the partition.
- A mirror of a higher epoch has taken over: this one stops.
- A start reads the source again from where the target's last batch begins. What the target has is
  passed over; a record of that batch which is not the source's parks the partition, because all
  that somebody else wrote stands in the place of records of the source.
"""

from dataclasses import dataclass, field

from shoal.client.codes import Code, facts_of
from shoal.client.errors import error_for
from shoal.client.produce.compare_and_append import Appendix, AppendResult
from shoal.mirror.copy.partition import TOO_LARGE, Outgoing, PartitionMirror
from shoal.mirror.copy.rebatch import Group
from shoal.mirror.copy.rewrite import find_difference, halves, prepare_to_append, within_limit
from shoal.mirror.offsets.offset_map import Span
from shoal.mirror.run.remedies import remedy_for
from shoal.model.findings import Outcome
from shoal.wire.batch import NO_SEQUENCE, Batch
from shoal.wire.records.re_encode import trim


@dataclass(slots=True)
class AppendingMirror(PartitionMirror):
    """The state of one partition; `target_offset` is where the target's log ends."""

    mirror_epoch: int = 0
    # Where the target ended at the start, and where it ended when this mirror last agreed with it:
    # what lies between is compared with the source (`tail` is its last batch).
    there_until: int = -1
    agreed_end: int = -1
    _unsure: set[int] = field(default_factory=set)  # ends of requests whose answers were lost

    def _complete(self, batch: Batch) -> tuple[Batch | None, list[Span]]:
        if batch.record_count == 0:
            self.counts.dropped_empty += 1
            return None, []
        # Offsets are their own map.
        if batch.base_offset >= self.position:
            return batch, []
        self.counts.trimmed += 1
        copy = trim(batch, from_offset=self.position)
        if copy is None:
            self.counts.dropped_empty += 1
        return copy, []

    @property
    def reached_target_offset(self) -> int:
        # A checkpoint must not agree with records that were not compared yet.
        is_compared = self.taken_from >= self.there_until
        return self.target_offset if is_compared else self.agreed_end

    def lost_below(self, first: int) -> int:
        return max(0, first - max(self.position, self.there_until))

    def _leave_out(self, batch: Batch) -> tuple[Batch | None, bool]:
        """What the target does not have of a batch; False if it has something else there."""
        if batch.base_offset >= self.there_until:
            return batch, True
        offset = None if self.tail is None else find_difference(batch, self.tail)
        if offset is not None:
            self.park(
                f"the target's record at offset {offset} is not the source's: somebody else has "
                "written to the target, in the place of records of the source",
                "compare both with `shoal mirror verify`, then delete the target's topic: it is "
                "filled again",
            )
            return None, False
        if batch.next_offset <= self.there_until:
            self.counts.already_there += batch.record_count
            return None, True
        self.counts.split += 1
        left = trim(batch, from_offset=self.there_until)
        self.counts.already_there += batch.record_count - (left.record_count if left else 0)
        return left, True

    def _accept(self, group: Group) -> bool:
        source_offset = group.source_offset
        for whole in group.batches:
            prepare_to_append(whole, max(whole.base_offset, source_offset))
            batch, is_good = self._leave_out(whole)
            if not is_good:
                return False
            if batch is None:
                continue
            if batch.next_offset > group.next_offset:
                self.park(
                    f"the handler made more of the batch at {source_offset} than it had",
                    "let it return no more records than it was given",
                )
                return False
            pieces = list(within_limit(batch, self.limit_bytes, keep_offsets=True))
            self.counts.split += len(pieces) - 1
            is_re_encoded = group.is_re_encoded or batch is not whole or len(pieces) > 1
            for piece in pieces:
                self._enqueue(self._outgoing(piece, source_offset, is_re_encoded=is_re_encoded))
                source_offset = piece.next_offset
        return True

    def _outgoing(self, batch: Batch, source_offset: int, *, is_re_encoded: bool) -> Outgoing:
        return Outgoing(
            batch,
            source_offset=source_offset,
            base_sequence=NO_SEQUENCE,
            is_re_encoded=is_re_encoded,
        )

    def _due_offset(self, outgoing: Outgoing) -> int:
        return outgoing.batch.base_offset

    def sendable(self, now: float) -> Outgoing | None:
        return None  # they go by `next_unit`

    def next_unit(self, now: float, room_bytes: int) -> list[Outgoing]:
        """The batches of the next request, if one may be sent now."""
        if not self.may_send or self._in_flight or now < self.not_before:
            return []
        unit: list[Outgoing] = []
        for outgoing in self._queue:
            room_bytes -= outgoing.batch.size
            if unit and room_bytes < 0:
                break
            unit.append(outgoing)
        for outgoing in unit:
            self.sent(outgoing)
        return unit

    def appendix(self, unit: list[Outgoing]) -> Appendix:
        batches = [outgoing.batch.view for outgoing in unit]
        return Appendix(self.target_offset, self.mirror_epoch, batches)

    def appended(self, unit: list[Outgoing], result: AppendResult, *, now: float) -> None:
        """What became of one request."""
        for outgoing in unit:
            outgoing.in_flight = False
        self._in_flight = 0
        end = unit[-1].batch.next_offset
        if result.is_ok:
            self.backoff.succeeded()
            self._written(end)
        elif result.is_mismatch:
            self._found_end(result.log_end)
        elif result.outcome is Outcome.UNKNOWN:
            self._unsure.add(end)
            for outgoing in unit:
                outgoing.is_unsure = True
            self.not_before = now + self.backoff.failed()
        else:
            self._append_refused(unit, result, now)

    def _found_end(self, end: int) -> None:
        if end in self._unsure:
            self._written(end)
            return
        self.suspect_target(
            f"the target ends at {end}, not at {self.target_offset}: "
            "somebody else writes to it, or it has lost records",
            "let only one mirror write there; compare both with `shoal mirror verify`",
        )

    def _written(self, end: int) -> None:
        self._unsure.clear()
        self.target_offset = end
        while self._queue and self._queue[0].batch.next_offset <= end:
            self._drop_first()

    def _append_refused(self, unit: list[Outgoing], result: AppendResult, now: float) -> None:
        code = result.error_code
        if result.is_fenced:
            self.park("a later mirror of this name has taken over", "let only one run")
            return
        if code == Code.CORRUPT_MESSAGE and any(self.is_poison(out) for out in unit):
            if self._damaged is not None:
                self._read_again(self._damaged)
            return
        largest = max(unit, key=lambda outgoing: outgoing.batch.size)
        if code in TOO_LARGE:
            if largest.batch.record_count > 1:
                self._split(largest)
            else:
                tp = self.target
                error = error_for(code, topic=tp.topic, partition=tp.partition)
                self.wait_for_limit(largest, error, now)
            return
        if result.cause is None and not facts_of(code).retriable:
            tp = self.target
            error = error_for(
                code, topic=tp.topic, partition=tp.partition, message=result.error_message
            )
            self.park(
                f"the target refuses the batches from {unit[0].source_offset} on: {error}",
                remedy_for(code),
            )
            return
        self.not_before = now + self.backoff.failed()

    def _split(self, outgoing: Outgoing) -> None:
        self.learn_limit(outgoing.batch)
        first, second = halves(outgoing.batch, keep_offsets=True)
        position = self._queue.index(outgoing)
        self._queue[position] = self._outgoing(first, outgoing.source_offset, is_re_encoded=True)
        self._queue.insert(
            position + 1, self._outgoing(second, second.base_offset, is_re_encoded=True)
        )
        self.queued_bytes += first.size + second.size - outgoing.batch.size
        self.counts.split += 1
