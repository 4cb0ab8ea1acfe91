"""One partition of a mirror that writes in transactions; pure.

Rules:
- Batches are taken from the head of the queue into a transaction, and leave it when that is
  committed. A transaction that failed is forgotten: the partition goes back to its last
  committed position (`go_back`) and reads from the source again.
- Checksums are looked at before a batch is taken: a damaged one would cost all partitions their
  transaction. The pieces of one batch go in one transaction.
- Within a transaction batches stand one behind the other at the target, and between two
  transactions stands the marker that ended the first. Anything else is somebody else's. An
  offset below what was acknowledged fails the transaction: the topic may be another one.
"""

from dataclasses import dataclass, field

from shoal.client.codes import Code
from shoal.client.errors import error_for
from shoal.client.results import ProduceResult
from shoal.mirror.copy.partition import Outgoing, PartitionMirror
from shoal.mirror.offsets.offset_map import MapWriter
from shoal.wire.batch import NO_SEQUENCE


@dataclass(slots=True)
class TransactionalMirror(PartitionMirror):
    """The state of one partition; `position` and queue are those of the open transaction."""

    _taken: int = 0  # batches at the head of the queue that are in the open transaction
    _expected: int = -1  # where the next batch should be; -1 while that is not known
    # Target offsets between the checkpoint and the first batch of a session: markers and aborted
    # batches, or data of another producer.
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def _number(self, outgoing: Outgoing) -> None:
        # The session that sends it writes the header.
        outgoing.base_sequence = NO_SEQUENCE
        self._enqueue(outgoing)

    def sendable(self, now: float) -> Outgoing | None:
        return None  # they go by `take`

    def _due_offset(self, outgoing: Outgoing) -> int:
        # Markers take offsets too. It is told before the transaction is committed (`written`).
        return -1

    @property
    def has_more(self) -> bool:
        return self.may_send and len(self._queue) > self._taken

    def take(self, room_bytes: int) -> list[Outgoing]:
        """The next batches for the transaction that is open, at most so many bytes but one."""
        taken: list[Outgoing] = []
        if not self.may_send:
            return taken
        for outgoing in list(self._queue)[self._taken :]:
            room_bytes -= outgoing.batch.size
            if taken and room_bytes < 0 and not outgoing.is_inner:
                break
            if self.is_poison(outgoing):
                break
            self.sent(outgoing)
            outgoing.is_unsure = True  # until its transaction has ended
            self._taken += 1
            taken.append(outgoing)
        if self._damaged is not None:
            self._read_again(self._damaged)
        return taken

    def written(self, outgoing: Outgoing, result: ProduceResult) -> None:
        """A batch of the open transaction is at the target."""
        outgoing.in_flight = False
        self._in_flight -= 1
        offset = result.base_offset
        if 0 <= offset < self.target_offset:
            # Perhaps another topic of this name: the transaction is aborted, so nothing is added.
            self._fall_back(offset)
            raise error_for(
                Code.INCONSISTENT_TOPIC_ID,
                topic=self.target.topic,
                partition=self.target.partition,
                message=f"a batch is at offset {offset}, below {self.target_offset}",
            )
        if offset >= 0:
            if self._expected == -1:
                if offset > self.target_offset:
                    self.gaps.append((self.target_offset, offset))
            elif offset != self._expected:
                self._displaced(offset, self._expected)
            outgoing.target_offset = offset
            if outgoing.is_re_encoded:
                self._declare(offset)
            self.target_offset = self._expected = offset + outgoing.batch.record_count

    def close_gap(self, gap: tuple[int, int], *, has_data: bool) -> None:
        """What is in a gap of `gaps` is known: markers and aborted batches only, or data."""
        self.gaps.remove(gap)
        if has_data:
            self._displaced(gap[1], gap[0])

    @property
    def next_position(self) -> int:
        """The source offset behind the open transaction."""
        if len(self._queue) > self._taken:
            return self._queue[self._taken].source_offset
        return self.position

    def map_with_open(self) -> MapWriter | None:
        """The offset map as it will be when the open transaction is committed."""
        if self.offsets is None:
            return None
        extended = self.offsets.copy()
        for outgoing in list(self._queue)[: self._taken]:
            if outgoing.target_offset >= 0:
                extended.add(outgoing.spans, outgoing.target_offset)
        extended.reach(self.next_position)
        return extended

    def committed(self, offsets: MapWriter | None = None) -> None:
        """The open transaction is visible; `offsets` is what `map_with_open` gave."""
        self.offsets = offsets
        if self._taken and self._expected >= 0:
            self._expected += 1  # its marker
        for _ in range(self._taken):
            self._drop_first()
        self._taken = 0

    def go_back(self, source_offset: int, target_offset: int) -> None:
        """Forget what is not committed."""
        self._queue.clear()
        if self.rebatcher is not None:
            self.rebatcher.forget(source_offset)
        self.queued_bytes = 0
        self._taken = self._in_flight = 0
        self._expected = -1
        self.position = source_offset
        self.target_offset = target_offset
