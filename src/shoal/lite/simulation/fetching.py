"""The fetches between simulated brokers: the sessions of production, and the messages around them.

Rules of this file:
- What production's `ReplicaFetchSession` and `ReplicaSession` do is not done here: which partitions
  a fetch and its answer have, what is retried, when a held fetch is answered, and when
  acknowledgements are released are their own.
- A fetch without an answer is given up after a time, and so is its connection: an answer that
  comes later is ignored.
- The judge looks at what is sent, not at what the sessions remember of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.partitions.sessions.fetch_session import FetcherIdentity
from shoal.lite.partitions.sessions.replica_session import Answers, ReplicaSessions
from shoal.lite.simulation.log import SimulatedBatch
from shoal.lite.simulation.messages import FetchCall, FetchRelease, FetchReply
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.setup import FETCH_MAX_WAIT_MS, REQUEST_TIMEOUT_MS
from shoal.wire.fetch import NO_SESSION_ID, FetchPartition, FetchRequest, PartitionAnswer

if TYPE_CHECKING:
    from shoal.lite.simulation.brokers import BrokerProcess

# So few that an answer does not always have room for all partitions.
_MOST_BATCHES = 5
_MOST_BATCHES_OF_PARTITION = 3


class SimulatedFetcher:
    """Fetches for all followers of one leader."""

    def __init__(self, broker: "BrokerProcess", leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        follower = FetcherIdentity(
            broker.id,
            broker.broker_epoch,
            FETCH_MAX_WAIT_MS,
            max_bytes=_MOST_BATCHES,
            partition_max_bytes=_MOST_BATCHES_OF_PARTITION,
        )
        self._session = broker.world.parts.fetch_session(
            leader_id, follower, broker.followers_of, _first_offset_of
        )
        # The fetch that waits for its answer, and whether the leader may hold it.
        self._number: int | None = None
        self._is_held = False
        # When the fetch is given up; without a fetch, when the next one is tried.
        self.due_ms = 0
        self._fetch()

    def wake(self) -> None:
        """Partitions were added, or follow in another leader epoch."""
        self._session.has_changed = True
        if self._number is None:
            self._fetch()
        elif self._is_held:
            self._is_held = False
            self._broker.send(self._leader_id, FetchRelease(self._number))

    def tick(self, now_ms: int) -> None:
        """The time of the deadline has come."""
        if self._number is None:
            self._fetch()
        else:
            self._number = None
            self.due_ms = now_ms + int(self._session.on_no_answer(now_ms) * 1000)

    def on_reply(self, reply: FetchReply) -> None:
        if reply.number == self._number:
            self._session.on_answer(
                self._broker.now_ms, reply.session_id, reply.code, reply.answers
            )
            self._fetch()

    def _fetch(self) -> None:
        now_ms, self._number = self._broker.now_ms, None
        if not self._session.choose_partitions(now_ms):
            self.due_ms = now_ms + self._session.idle_ms(now_ms)
            return
        request = self._session.next_request(now_ms)
        self._number = self._broker.next_call()
        self._is_held = True
        self.due_ms = now_ms + request.max_wait_ms + REQUEST_TIMEOUT_MS
        self._broker.send(self._leader_id, FetchCall(self._number, request))


def _first_offset_of(batches: Sequence[SimulatedBatch]) -> int:
    return batches[0].base_offset


@dataclass(slots=True)
class _HeldReply:
    """A follower's fetch that its session holds."""

    server: "FetchServer"
    follower_id: int
    number: int

    def cancelled(self) -> bool:
        return False

    def deliver(self, session_id: int, code: Code, answers: Answers) -> None:
        reply = FetchReply(self.number, session_id, code, answers)
        self.server.send_reply(self.follower_id, reply)


class FetchServer:
    """Answers the fetches of followers. The `ReplicaFetchHost` of a simulated broker."""

    def __init__(self, broker: "BrokerProcess", random: Random) -> None:
        self._broker = broker
        self.scheduler = broker.scheduler
        self._sessions = ReplicaSessions(self, random, broker.world.parts.replica_session)
        # By follower: the fetch that was held last.
        self._held: dict[int, _HeldReply] = {}

    def is_registered(self, broker_id: int) -> bool:
        return broker_id in self._broker.state.brokers

    def find_partition(self, requested: FetchPartition, *, uses_ids: bool) -> SimulatedPartition:
        hosted = self._find(requested)
        if hosted is None:
            message = f"{self._broker.id} has no replica of p{requested.partition}"
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, message)
        return hosted

    def _find(self, item: FetchPartition | PartitionAnswer[Any]) -> SimulatedPartition | None:
        assert item.topic_id is not None  # noqa: S101 - for the type checker
        return self._broker.hosted.get((item.topic_id, item.partition))

    def on_call(self, follower_id: int, call: FetchCall) -> None:
        number, fetch = call.number, call.request
        try:
            session = self._sessions.find(fetch)
        except ApiError as error:
            self.send_reply(follower_id, FetchReply(number, NO_SESSION_ID, error.code))
            return
        answers = session.on_fetch(fetch, wait_ms=fetch.max_wait_ms, uses_ids=True)
        self._report_fetched(follower_id, fetch, answers or [])
        if answers is None:
            self._held[follower_id] = held = _HeldReply(self, follower_id, number)
            session.hold(held)
            return
        self.send_reply(follower_id, FetchReply(number, session.session_id, Code.NONE, answers))
        session.release_acks()

    def on_release(self, follower_id: int, message: FetchRelease) -> None:
        session, held = self._sessions.by_follower.get(follower_id), self._held.get(follower_id)
        if session is not None and held is not None and held.number == message.number:
            session.release(held)

    def _report_fetched(self, follower_id: int, fetch: FetchRequest, answers: Answers) -> None:
        """Report the partitions for which the follower may expect records."""
        refused = {
            (answer.topic_id, answer.partition)
            for answer in answers
            if answer.error_code or answer.diverging_epoch is not None
        }
        for requested in fetch.partitions:
            if (requested.topic_id, requested.partition) not in refused:
                hosted = self._find(requested)
                if hosted is not None:
                    self._broker.world.judge.on_follower_fetched(hosted, follower_id)

    def send_reply(self, follower_id: int, reply: FetchReply) -> None:
        judge = self._broker.world.judge
        for answer in reply.answers:
            if not answer.error_code and answer.diverging_epoch is None:
                hosted = self._find(answer)
                if hosted is not None:
                    judge.on_high_watermark_sent(hosted, follower_id, answer.high_watermark)
        self._broker.send(follower_id, reply)
