"""The client's end of a fetch session (KIP-227): requests carry only what has changed. Pure.

    put, remove ──► next_request ──► on_answer
                        ▲                │ an error of the session, or no answer (`reset`)
                        └─ all partitions ◄┘

Rules of this file:
- The first request contains all partitions, the next ones only those that were added, moved or
  removed since; the broker remembers the others. An answer contains only partitions with news.
- A broker that grants no session (it has no room, or is older than Kafka 1.1) gets all partitions
  every time.
- A partition that was answered with records or an error is sent again with the next request, even
  if its caller did not consume them: the broker must not take them as read.
- An answer belongs to the offset that its request named (`get_asked_offset`). A caller that has
  moved a partition meanwhile drops such an answer.
- After a lost answer or an error of the session nothing is known about the broker's state: all
  partitions are sent again. That request names the old session, which ends it.
- Partitions that moved are at the end of a full request: a broker fills a response in this order.
- Topics are named by id if the request's version allows it. A topic with another id is another
  topic: the old one is removed from the session by its id.
"""

from collections.abc import Iterable, KeysView
from typing import Final, NamedTuple
from uuid import UUID

from shoal.client.codes import Code
from shoal.model.topics import TopicPartition
from shoal.wire.fetch import (
    NO_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    ForgottenPartition,
)

Fetched = dict[TopicPartition, FetchedPartition]

FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = NO_SESSION_EPOCH
LAST_EPOCH: Final = (1 << 31) - 1
# The broker does not have the session in the state that the client expects.
SESSION_ERRORS: Final = frozenset(
    {
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
        Code.INCONSISTENT_TOPIC_ID,
    }
)


class SessionRequest(NamedTuple):
    """The part of a fetch request that concerns its session."""

    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]


class FetchSession:
    """The partitions to fetch from one broker on one connection; one request at a time."""

    def __init__(self) -> None:
        self._wanted: dict[TopicPartition, FetchPartition] = {}
        # As the last request named them.
        self._sent: dict[TopicPartition, FetchPartition] = {}
        # Since the last request: what may differ from it, and what must be sent in any case.
        self._changed: dict[TopicPartition, None] = {}
        self._answered: set[TopicPartition] = set()
        self._names: dict[UUID | None, str] = {}
        self._without_id = 0
        self._session_id = NO_SESSION_ID
        self._epoch = FULL_EPOCH
        self._uses_ids = True

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def partitions(self) -> KeysView[TopicPartition]:
        return self._wanted.keys()

    @property
    def has_ids(self) -> bool:
        """Whether the topic ids of all partitions are known."""
        return not self._without_id

    @property
    def session_id(self) -> int:
        """The broker's id of the session; 0 if it has granted none."""
        return self._session_id

    # What to fetch.

    def put(self, part: FetchPartition) -> None:
        """Fetch a partition from this offset on."""
        tp = TopicPartition(part.topic, part.partition)
        if self._wanted.get(tp) == part:
            return
        self.remove(tp)
        self._wanted[tp] = part
        self._without_id += part.topic_id is None

    def remove(self, tp: TopicPartition) -> None:
        """Stop fetching a partition."""
        old = self._wanted.pop(tp, None)
        if old is not None:
            self._without_id -= old.topic_id is None
        self._changed[tp] = None

    def set_all(self, parts: Iterable[FetchPartition]) -> None:
        """Fetch these partitions and no others."""
        wanted = {TopicPartition(part.topic, part.partition): part for part in parts}
        for tp in [tp for tp in self._wanted if tp not in wanted]:
            self.remove(tp)
        for part in wanted.values():
            self.put(part)

    def get_wanted(self, tp: TopicPartition) -> FetchPartition | None:
        """How the next request names a partition; None if it is not fetched."""
        return self._wanted.get(tp)

    def get_asked_offset(self, tp: TopicPartition) -> int | None:
        """The offset of a partition in the last request; None if it was not in it."""
        part = self._sent.get(tp)
        return None if part is None else part.offset

    # Requests and answers.

    def next_request(self, *, uses_ids: bool) -> SessionRequest:
        """Return the next request. `uses_ids`: it names topics by id."""
        if uses_ids != self._uses_ids:
            self._epoch = FULL_EPOCH
            self._uses_ids = uses_ids
        if self._epoch == FULL_EPOCH:
            self._sent = dict(self._wanted)
            self._names = {part.topic_id: part.topic for part in self._wanted.values()}
            partitions, forgotten = list(self._wanted.values()), list[ForgottenPartition]()
        else:
            partitions, forgotten = self._take_changes()
        self._changed, self._answered = {}, set()
        return SessionRequest(self._session_id, self._epoch, partitions, forgotten)

    def _take_changes(self) -> tuple[list[FetchPartition], list[ForgottenPartition]]:
        partitions: list[FetchPartition] = []
        forgotten: list[ForgottenPartition] = []
        for tp in {**self._changed, **dict.fromkeys(self._answered)}:
            old, new = self._sent.get(tp), self._wanted.get(tp)
            if old is not None and (new is None or self._is_other_topic(old, new)):
                forgotten.append(ForgottenPartition(old.topic, old.topic_id, old.partition))
                del self._sent[tp]
            if new is not None and (new != old or tp in self._answered):
                partitions.append(new)
                self._sent[tp] = new
                self._names[new.topic_id] = new.topic
        return partitions, forgotten

    def _is_other_topic(self, old: FetchPartition, new: FetchPartition) -> bool:
        return self._uses_ids and old.topic_id != new.topic_id

    def on_answer(self, response: FetchResponse) -> Fetched | None:
        """Process an answer; None if all partitions must be sent again (`SESSION_ERRORS`).

        Other errors of the whole response are for the caller, after `reset`. Partitions that are
        not in the result have no news.
        """
        if response.error_code in SESSION_ERRORS:
            self.reset()
            if response.error_code == Code.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION_ID
            return None
        fetched = self._by_partition(response.partitions)
        if self._epoch == FULL_EPOCH:
            self._add_missing(fetched)
        self._answered = {tp for tp, part in fetched.items() if part.error_code or part.records}
        self._session_id = response.session_id
        if self._session_id == NO_SESSION_ID or any(
            part.error_code == Code.INCONSISTENT_TOPIC_ID for part in fetched.values()
        ):
            self._epoch = FULL_EPOCH
        else:
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1
        return fetched

    def reset(self) -> None:
        """Send all partitions with the next request: it is not known what the broker has."""
        self._epoch = FULL_EPOCH

    def end(self) -> SessionRequest | None:
        """Return the request that ends the session; None if there is no session."""
        session_id, self._session_id = self._session_id, NO_SESSION_ID
        self._epoch = FULL_EPOCH
        if session_id == NO_SESSION_ID:
            return None
        return SessionRequest(session_id, FINAL_EPOCH, [], [])

    def _by_partition(self, parts: Iterable[FetchedPartition]) -> Fetched:
        fetched: Fetched = {}
        for part in parts:
            named = part if part.topic else part._replace(topic=self._names.get(part.topic_id, ""))
            tp = TopicPartition(named.topic, named.partition)
            sent = self._sent.get(tp)
            if sent is not None and (not self._uses_ids or sent.topic_id == part.topic_id):
                fetched[tp] = named
        return fetched

    def _add_missing(self, fetched: Fetched) -> None:
        """An answer to a request with all partitions must contain all of them."""
        for tp in self._sent:
            if tp not in fetched:
                fetched[tp] = FetchedPartition(
                    tp.topic, None, tp.partition, error_code=Code.UNKNOWN_SERVER_ERROR
                )
