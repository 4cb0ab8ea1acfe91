"""The stream of a page: what runs now and the new events of what it follows, once a second.

Rules:
- `now` follows everything that runs, from the last minute on; `follow` names things (at most
  `MOST_FOLLOWED`), each with a `position` from which its events are sent.
- Messages of the stream: `things` (all that run, and the server's clock) and `events` (of one
  thing, with the position after them; `is_start` means that they replace what was sent before).
- At most `MOST_STREAMS` are open. Pages close theirs while they are hidden.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal.web.event_files import TAIL, read_chunk
from shoal.web.json_text import encode_json
from shoal.web.things import Thing, find_thing, find_things

PERIOD_S: Final = 1.0
MOST_FOLLOWED: Final = 24
MOST_STREAMS: Final = 32
# Of one thing in one round: the rest follows in the next round, which begins at once.
_MOST_CHUNKS: Final = 4

Message = dict[str, str]


@dataclass(slots=True)
class StreamCount:
    """How many streams are open."""

    open: int = 0

    @property
    def is_full(self) -> bool:
        return self.open >= MOST_STREAMS


@dataclass(slots=True)
class PageFollower:
    """What one page follows."""

    runs_dir: Path
    is_now: bool = False
    positions: dict[str, str] = field(default_factory=dict)

    def read_round(self) -> tuple[list[Message], bool]:
        """The messages of one round, and whether more can be read at once."""
        running = find_things(self.runs_dir)
        messages = [_encode("things", _describe(running))]
        has_more = False
        for thing in self._list_followed(running):
            for _ in range(_MOST_CHUNKS):
                chunk = read_chunk(thing.path, self.positions[thing.id])
                if chunk is None:
                    break
                self.positions[thing.id] = chunk.position
                if chunk.events:
                    content = {"thing": thing.id, **chunk._asdict()}
                    messages.append(_encode("events", content))
                if not chunk.has_more:
                    break
            else:
                has_more = True
        return messages, has_more

    def _list_followed(self, running: Sequence[Thing]) -> list[Thing]:
        if self.is_now:
            for thing in running[:MOST_FOLLOWED]:
                self.positions.setdefault(thing.id, TAIL)
        known = {thing.id: thing for thing in running}
        found = [known.get(id_) or find_thing(self.runs_dir, id_) for id_ in self.positions]
        return [thing for thing in found if thing is not None]


async def stream(follower: PageFollower, count: StreamCount) -> AsyncIterator[Message]:
    """The messages of a stream until the page closes it."""
    count.open += 1
    try:
        while True:
            messages, has_more = await asyncio.to_thread(follower.read_round)
            for message in messages:
                yield message
            await asyncio.sleep(0 if has_more else PERIOD_S)
    finally:
        count.open -= 1


def _describe(running: Sequence[Thing]) -> dict[str, Any]:
    return {"now_us": time.time_ns() // 1000, "things": [thing.to_json() for thing in running]}


def _encode(event: str, content: dict[str, Any]) -> Message:
    return {"event": event, "data": encode_json(content)}
