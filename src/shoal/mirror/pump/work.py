"""What the runner does for one partition at the moment; pure."""

import asyncio
from dataclasses import dataclass, field

from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.partition import PartitionMirror


@dataclass(slots=True, eq=False)
class PartitionWork:
    """One partition of a runner."""

    mirror: PartitionMirror
    reader: int | None = None  # the source broker that it is fetched from, or left out of
    writer: int | None = None  # the target broker for which it has batches
    fetch_after: float = 0.0
    # Its position or leader is being checked: nothing is fetched.
    is_checked: bool = False
    is_queried: bool = False  # its last sequence is being read from the target
    is_confirmed: bool = False  # the topic id at the target is being read
    has_other_source: bool = False  # the source topic was recreated
    target_node: int | None = None  # its leader at the target
    # The last error of fetching or producing, until it succeeds again.
    fetch_error: str = ""
    produce_error: str = ""
    is_unanswered: bool = False  # the last request to the target was not answered
    # It has dropped what was queued while it was stuck, and is tried again with new records.
    is_probe: bool = False
    awaits_room: bool = False  # it is left out of fetches until it has room
    # Set while it is being released.
    released: asyncio.Event | None = None
    sends_rest: bool = False
    appends: bool = field(init=False)
    is_transactional: bool = field(init=False)

    def __post_init__(self) -> None:
        delivery = self.mirror.delivery
        self.appends = isinstance(delivery, AppendDelivery)
        self.is_transactional = isinstance(delivery, TransactionalDelivery)

    @property
    def is_stuck(self) -> bool:
        """Whether the target does not take its batches at the moment."""
        is_failing = bool(self.produce_error) and not self.is_probe
        is_refused = is_failing or not self.mirror.can_send
        return self.target_node is None or (is_refused and self.mirror.queued_bytes > 0)

    @property
    def is_calm(self) -> bool:
        """Whether an acknowledgement changes nothing but what is queued."""
        mirror, is_failing = self.mirror, self.is_probe or self.is_unanswered
        is_failing = is_failing or bool(self.produce_error) or mirror.queue.is_halted
        is_going = self.released is not None or self.target_node is None
        return not (is_failing or is_going) and mirror.can_send

    @property
    def is_unfinished(self) -> bool:
        """Whether it has batches that can still be delivered or answered."""
        mirror = self.mirror
        return mirror.parked is None and bool(
            mirror.queue.in_flight or (mirror.queued_bytes and mirror.can_send)
        )

    def next_time(self, now: float) -> float | None:
        """When it must be looked at again, if nothing happens before."""
        mirror, rebatcher = self.mirror, self.mirror.intake.rebatcher
        times = [self.fetch_after]
        if mirror.queued_bytes or mirror.is_waiting:
            times.append(mirror.queue.not_before)
        if rebatcher is not None and rebatcher.due_at is not None:
            times.append(rebatcher.due_at)
        return min((at for at in times if at > now), default=None)
