"""The follower's end of a fetch session: what one broker fetches from one leader. Pure.

Rules of this file:
- One fetch at a time, for all partitions that follow this leader.
- The first request contains all partitions, the next ones only those that changed (KIP-227): the
  leader remembers the others. So the cost of a fetch depends on the number of changes.
- A partition whose fetch failed leaves the session and is added again after its pause. After a
  lost connection or session, all partitions are sent again.
- An error of one partition stops only that one.
- A leader that cannot be reached, or closes the connection, is retried after a pause that doubles.
- The caller sends `next_request`, and reports its answer or that there will be none.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shoal.lite.base.codes import Code
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.replication.fetch_sessions import FULL_EPOCH, LAST_EPOCH
from shoal.lite.replication.messages import EpochEndOffset, FetchAnswer, ReplicaFetch
from shoal.runtime.tasks import RestartBackoff, record_failure
from shoal.wire.errors import Malformed
from shoal.wire.fetch import (
    NO_SESSION_ID,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    PartitionAnswer,
)

_IDLE_MS = 1000
# Elections are short, so the first pause is short.
_RECONNECT = RestartBackoff(first_s=0.02, longest_s=1.0)
_SESSION_ENDED = {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH}
_CODES = {int(code): code for code in Code}

# The topic id as a number, and the partition.
Key = tuple[int, int]
_Partition = PartitionShell[Any]
_PartitionFetch = tuple[_Partition, ReplicaFetch]


class FetcherIdentity(NamedTuple):
    """This broker, its broker epoch, and the longest wait and the largest answers of its fetches.

    A simulation counts batches, not bytes.
    """

    broker_id: int
    broker_epoch: int
    wait_ms: int
    max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024


class ReplicaFetchSession:
    """Chooses the partitions of each fetch, and passes the answers to them."""

    def __init__(
        self,
        leader_id: int,
        follower: FetcherIdentity,
        followers_of: Callable[[int], Iterable[_Partition]],
        first_offset_of: Callable[[Any], int | None],
    ) -> None:
        """`followers_of` returns the partitions that follow a leader now; `first_offset_of` that
        of the first batch of records that are not empty."""
        self._leader_id = leader_id
        self._follower = follower
        self._followers_of = followers_of
        self._first_offset_of = first_offset_of
        # Whether partitions were added, or follow in another leader epoch.
        self.has_changed = False
        # The partitions of the session that the leader knows, those to send, and those to remove.
        # Without a session all partitions are sent.
        self._session_id = NO_SESSION_ID
        self._session_epoch = FULL_EPOCH
        self._session_partitions: dict[Key, _PartitionFetch] = {}
        self._to_send: dict[Key, _PartitionFetch] = {}
        self._forgotten: dict[Key, _Partition] = {}
        # Partitions outside the session: they are new, or failed and are retried later.
        self._unsent: dict[Key, _Partition] = {}
        # When the first of them may be sent.
        self._retry_ms: int | None = None
        # The pause after the next fetch without an answer.
        self._pause_s = _RECONNECT.first_s

    def reset(self) -> None:
        """Send a full fetch next."""
        self._session_id, self._session_epoch = NO_SESSION_ID, FULL_EPOCH

    # Choosing partitions

    def choose_partitions(self, now_ms: int) -> bool:
        """Choose the partitions of the next request; return whether there is one to send now.

        If not, this is to be called again after `idle_ms`, or when partitions are added.
        """
        has_changed, self.has_changed = self.has_changed, False
        if self._session_epoch == FULL_EPOCH:
            self._add_all_partitions(now_ms)
            return bool(self._session_partitions)
        if has_changed:
            self._add_changed_partitions()
        self._add_retriable_partitions(now_ms)
        return True

    def idle_ms(self, now_ms: int) -> int:
        """Return how long to wait if no partition can be fetched now."""
        return self._time_to_retry_ms(now_ms, _IDLE_MS)

    def next_request(self, now_ms: int) -> FetchRequest:
        """Return the request with the partitions that were chosen."""
        follower, size = self._follower, self._follower.partition_max_bytes
        return FetchRequest(
            replica_id=follower.broker_id,
            # Partitions that are to be retried must not wait for those without new records.
            max_wait_ms=self._time_to_retry_ms(now_ms, follower.wait_ms),
            min_bytes=1,
            max_bytes=follower.max_bytes,
            isolation=READ_UNCOMMITTED,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=[_to_fetch_partition(*item, size) for item in self._to_send.values()],
            forgotten=[_to_forgotten_partition(gone) for gone in self._forgotten.values()],
            replica_epoch=follower.broker_epoch,
        )

    def _add_all_partitions(self, now_ms: int) -> None:
        self._session_partitions, self._to_send, self._forgotten = {}, {}, {}
        self._unsent = self._followers()
        self._retry_ms = 0
        self._add_retriable_partitions(now_ms)

    def _followers(self) -> dict[Key, _Partition]:
        partitions = self._followers_of(self._leader_id)
        return {(p.record.topic_id.int, p.record.partition): p for p in partitions}

    def _add_changed_partitions(self) -> None:
        """Add new partitions and those in a new leader epoch; remove those that left."""
        followers = self._followers()
        for key, (partition, _) in list(self._session_partitions.items()):
            if followers.get(key) is not partition:
                self._forget(key, partition)
        for key, partition in followers.items():
            known = self._session_partitions.get(key)
            if known is None or _leader_epoch(partition) != known[1].leader_epoch:
                self._unsent[key] = partition
                self._retry_ms = 0

    def _forget(self, key: Key, partition: _Partition) -> None:
        """Remove a partition from the session."""
        del self._session_partitions[key]
        self._to_send.pop(key, None)
        self._forgotten[key] = partition

    def _add_retriable_partitions(self, now_ms: int) -> None:
        """Add the partitions outside the session that may be fetched now."""
        if self._retry_ms is None or now_ms < self._retry_ms:
            return
        self._retry_ms = None
        unsent, self._unsent = self._unsent, {}
        for key, partition in unsent.items():
            fetch = self._next_fetch(partition, now_ms)
            if fetch is not None:
                self._session_partitions[key] = self._to_send[key] = (partition, fetch)
            else:
                self._retry_later(key, partition)

    def _next_fetch(self, partition: _Partition, now_ms: int) -> ReplicaFetch | None:
        """Return the next fetch of a partition; None if it cannot fetch from this leader now."""
        follower = partition.replica.follower
        if (
            follower is None
            # A former leader's errors would pause the fetches from the present one.
            or follower.leader != self._leader_id
            or partition.is_removed
            or partition.log.offline_reason is not None
        ):
            return None
        return follower.next_fetch(now_ms)

    def _retry_later(self, key: Key, partition: _Partition) -> None:
        """Add a partition again when its follower may retry; never if it is fenced or removed."""
        follower = partition.replica.follower
        if follower is None or follower.leader != self._leader_id or partition.is_removed:
            return
        retry_ms = follower.next_deadline_ms()
        if retry_ms is not None:
            self._unsent[key] = partition
            self._retry_ms = retry_ms if self._retry_ms is None else min(retry_ms, self._retry_ms)

    def _time_to_retry_ms(self, now_ms: int, most_ms: int) -> int:
        """Return the time until a follower may retry, at most `most_ms`."""
        if self._retry_ms is None:
            return most_ms
        return min(most_ms, max(1, self._retry_ms - now_ms))

    # Answers

    def on_no_answer(self, now_ms: int) -> float:
        """Retry all partitions after a pause, whose length in seconds is returned."""
        self.reset()
        for partition, fetch in self._session_partitions.values():
            _report_failure(partition, now_ms, fetch)
        pause_s = self._pause_s
        self._pause_s = _RECONNECT.after(pause_s)
        return pause_s

    def on_answer(
        self,
        now_ms: int,
        session_id: int,
        error_code: int,
        partitions: Iterable[PartitionAnswer[Any]],
    ) -> None:
        """Apply the leader's answer; `Malformed` if it is not an answer to a replica's fetch."""
        if error_code in _SESSION_ENDED:
            self.reset()
            return
        if error_code:
            raise Malformed(f"the leader rejected a replica fetch with error code {error_code}")
        self._pause_s = _RECONNECT.first_s
        self._session_id = session_id
        self._session_epoch = 1 if self._session_epoch == LAST_EPOCH else self._session_epoch + 1
        self._apply_answers(now_ms, partitions)
        if session_id == NO_SESSION_ID:
            self.reset()

    def _apply_answers(self, now_ms: int, answers: Iterable[PartitionAnswer[Any]]) -> None:
        """Apply the leader's answers, and collect the partitions of the next request."""
        self._to_send, self._forgotten = {}, {}
        for answer in answers:
            if answer.topic_id is None:
                continue
            key = (answer.topic_id.int, answer.partition)
            known = self._session_partitions.get(key)
            if known is None:
                continue
            partition, fetch = known
            self._deliver_answer(partition, fetch, answer, now_ms)
            following = self._next_fetch(partition, now_ms)
            if answer.error_code:
                # The leader sends an error once and removes the partition from its session.
                del self._session_partitions[key]
                if following is None:
                    self._retry_later(key, partition)
                else:
                    self._session_partitions[key] = self._to_send[key] = (partition, following)
            elif following is None:
                self._forget(key, partition)
                self._retry_later(key, partition)
            elif following != fetch:
                self._session_partitions[key] = self._to_send[key] = (partition, following)

    def _deliver_answer(
        self,
        partition: _Partition,
        fetch: ReplicaFetch,
        answer: PartitionAnswer[Any],
        now_ms: int,
    ) -> None:
        """Pass an answer to its partition; an unexpected error affects only that partition."""
        try:
            partition.on_fetch_answer(
                fetch, to_fetch_answer(answer, self._first_offset_of), answer.records
            )
        except Exception as error:  # noqa: BLE001 - the other partitions must be fetched
            record_failure("replication of a partition", error, f"{partition!r} is retried")
            _report_failure(partition, now_ms, fetch)


def _report_failure(partition: _Partition, now_ms: int, fetch: ReplicaFetch) -> None:
    if (follower := partition.replica.follower) is not None:
        follower.on_fetch_failed(now_ms, fetch)


def _leader_epoch(partition: _Partition) -> int:
    follower = partition.replica.follower
    return -1 if follower is None else follower.leader_epoch


def _to_forgotten_partition(partition: _Partition) -> ForgottenPartition:
    record = partition.record
    return ForgottenPartition(partition.name, record.topic_id, record.partition)


def _to_fetch_partition(
    partition: _Partition, fetch: ReplicaFetch, max_bytes: int
) -> FetchPartition:
    return FetchPartition(
        partition.name,
        partition.record.topic_id,
        partition.record.partition,
        fetch.offset,
        max_bytes,
        fetch.leader_epoch,
        fetch.last_fetched_epoch,
        fetch.log_start_offset,
    )


def to_fetch_answer(
    answer: PartitionAnswer[Any], first_offset_of: Callable[[Any], int | None]
) -> FetchAnswer:
    """Return what an answer says to the follower."""
    diverging, records = answer.diverging_epoch, answer.records
    return FetchAnswer(
        answer.high_watermark,
        answer.log_start_offset,
        _CODES.get(answer.error_code, Code.UNKNOWN_SERVER_ERROR),
        None if diverging is None else EpochEndOffset(*diverging),
        first_offset_of(records) if len(records) else None,
    )
