"""What all processes have in common: a node, a clock, a mailbox and an alarm.

Rules of this file:
- A process is one start of a node. When the node starts again, it is another process; the disk
  and the clock belong to the node.
- A process knows the time of its own clock only, which runs faster or slower than others and
  starts anywhere.
- After every event a process does everything there is to do, and says when it wants to wake.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.lite.simulation.world import World


class Clock:
    """A clock that is neither right nor at the right speed."""

    __slots__ = ("_offset_ms", "_rate")

    def __init__(self, offset_ms: int, rate: float) -> None:
        self._offset_ms = offset_ms
        self._rate = rate

    def read(self, now_ms: int) -> int:
        return self._offset_ms + int(now_ms * self._rate)

    def when(self, local_ms: int) -> int:
        """The first moment at which the clock shows a time, or a later one."""
        return int((local_ms - self._offset_ms) / self._rate) + 1


class Process:
    """One start of a node."""

    def __init__(self, world: "World", node_id: int, clock: Clock) -> None:
        self.world = world
        self.id = node_id
        self.clock = clock
        self.is_alive = True
        self.paused_until_ms = 0
        # When it will be woken; an alarm for another time is out of date.
        self.alarm_ms: int | None = None

    @property
    def now_ms(self) -> int:
        return self.clock.read(self.world.now_ms)

    def next_call(self) -> int:
        """A number for a question; no other process of this node has it too."""
        return self.world.next_call()

    def send(self, target: int, message: Any) -> None:
        self.world.send(self.id, target, message)

    # For subclasses

    def receive(self, sender: int, message: Any) -> None:
        """A message has arrived."""
        raise NotImplementedError

    def wake(self) -> None:
        """The time of a deadline has come."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """When to be woken, by the own clock."""
        raise NotImplementedError

    def finish_event(self) -> None:
        """Do what was put off until the end of an event."""

    def end(self) -> None:
        """The process ends; from now on it does nothing."""
        self.is_alive = False
