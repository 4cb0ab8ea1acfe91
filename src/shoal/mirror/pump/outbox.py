"""Which partitions have batches for which broker of the target; pure.

Rules:
- A partition waits in the outbox of its leader from when it may have something to send until it has
  nothing, or cannot send it now. Then it must be touched to wait again. It also waits while the
  limit of its topic is reached.
- Partitions are served round robin, so that none holds back others when requests are full.
- If partitions with and without compare-and-append wait for one broker, their requests alternate.
- Partitions with transactional delivery are not here: their writers look for batches themselves.
"""

from collections.abc import Iterator

from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.partition import Outgoing, PartitionMirror
from shoal.mirror.pump.work import PartitionWork
from shoal.model.topics import TopicPartition

Units = list[tuple[AppendDelivery, list[Outgoing]]]
Singles = list[tuple[PartitionMirror, Outgoing]]
_Waiting = dict[TopicPartition, PartitionMirror]


class Outbox:
    """The partitions that wait to send, by target broker."""

    def __init__(self) -> None:
        self._singles: dict[int, _Waiting] = {}
        self._units: dict[int, _Waiting] = {}
        self._units_are_next: dict[int, bool] = {}

    def put(self, work: PartitionWork, node_id: int | None) -> None:
        """Let a partition wait for this broker, or for none."""
        if work.is_transactional:
            return
        tp = work.mirror.partition
        waiting = self._units if work.appends else self._singles
        if work.writer is not None and work.writer != node_id:
            waiting[work.writer].pop(tp, None)
        work.writer = node_id
        if node_id is not None:
            waiting.setdefault(node_id, {})[tp] = work.mirror

    def nodes(self) -> Iterator[int]:
        """The brokers for which partitions may wait."""
        yield from {**self._singles, **self._units}

    def take(self, node_id: int, now: float, room_bytes: int) -> tuple[Singles, Units]:
        """Take what the next request contains: batches of one kind, of which the other is empty."""
        is_turn_of_units = self._units_are_next.get(node_id, False)
        for _ in range(2):
            batches: Singles = []
            units: Units = []
            if is_turn_of_units:
                units = self.take_units(node_id, now, room_bytes)
            else:
                batches = self.take_singles(node_id, now, room_bytes)
            is_turn_of_units = not is_turn_of_units
            if batches or units:
                self._units_are_next[node_id] = is_turn_of_units
                return batches, units
        return [], []

    def take_singles(self, node_id: int, now: float, room_bytes: int) -> Singles:
        """Take one batch of each partition that can send one, as far as a request has room."""
        batches: Singles = []
        waiting = self._singles.get(node_id, {})
        for tp, mirror in list(waiting.items()):
            if not mirror.throttle.is_open(now):
                continue
            outgoing = mirror.next_batch(now)
            if outgoing is None:
                del waiting[tp]
                continue
            room_bytes -= outgoing.size
            if batches and room_bytes < 0:
                break
            mirror.mark_sent(outgoing)
            mirror.throttle.spend(outgoing.size, now)
            batches.append((mirror, outgoing))
            waiting[tp] = waiting.pop(tp)
        return batches

    def take_units(self, node_id: int, now: float, room_bytes: int) -> Units:
        """Take the next unit of each partition with compare-and-append, as far as there is room."""
        units: Units = []
        waiting = self._units.get(node_id, {})
        for tp, mirror in list(waiting.items()):
            if room_bytes <= 0:
                break
            delivery = mirror.delivery
            if not mirror.throttle.is_open(now):
                continue
            del waiting[tp]  # only one unit is in flight
            if isinstance(delivery, AppendDelivery):
                unit = delivery.next_unit(now, mirror.throttle.limit_request(room_bytes))
                size_bytes = sum(out.size for out in unit)
                if unit:
                    units.append((delivery, unit))
                    room_bytes -= size_bytes
                mirror.throttle.spend(size_bytes, now)
        return units
