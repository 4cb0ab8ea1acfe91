"""Compare-and-append: a mirror writes to Kafka Lite at the offsets of its source.

    appended = await client.compare_and_append({tp: AppendRequest(end, epoch, batches)})
    if appended[tp].is_mismatch:
        end = appended[tp].log_end     # continue from there

Rules of this file:
- One attempt, as in raw produce: errors are in the results, and a result is *failed* only if
  nothing was written. After an unknown result call again: the response has the true log end.
- `UnsupportedByBroker` is raised if the broker does not support it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.client.cluster.router import Core
from shoal.client.codes import ACKS_ALL, INVALIDATES_METADATA, Code, outcome_of
from shoal.client.errors import (
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
)
from shoal.client.transport.pool import PRODUCE
from shoal.client.transport.replaced_broker import await_unless_replaced
from shoal.model.errors import WireError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.compare_and_append import (
    FEATURE,
    AppendEntry,
    EntryAnswer,
    decode_response,
    encode_request,
)
from shoal.wire.framing import Part

# In addition to those with which Produce refuses.
_REFUSED = frozenset({Code.OFFSET_OUT_OF_RANGE, Code.UNSUPPORTED_VERSION})
_BROKER_SHARE = 0.8


class AppendRequest(NamedTuple):
    """What to append to a partition if its log ends at `expected_end`.

    Batches have their final offsets and no producer ids. Without batches, the mirror fences older
    epochs of the partition, and learns whether the log ends there.
    """

    expected_end: int
    mirror_epoch: int
    batches: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append; `log_end` is the log end offset on all in-sync replicas."""

    outcome: Outcome
    error_code: int = 0
    log_end: int = -1
    error_message: str | None = None
    cause: ClientError | None = None

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def is_mismatch(self) -> bool:
        """Nothing was written, because the log ends at `log_end` instead."""
        return self.error_code == Code.OFFSET_OUT_OF_RANGE

    @property
    def is_fenced(self) -> bool:
        """Nothing was written, because a newer mirror has fenced this one."""
        return self.error_code == Code.PRODUCER_FENCED


AppendResults = dict[TopicPartition, AppendResult]


async def compare_and_append(
    core: Core, requests: Mapping[TopicPartition, AppendRequest], *, timeout_ms: int | None = None
) -> AppendResults:
    """One request to each leader, all at once."""
    cluster = await core.metadata({tp.topic for tp in requests})
    by_leader: dict[int, dict[TopicPartition, AppendRequest]] = {}
    appended: AppendResults = {}
    for tp, request in requests.items():
        leader = cluster.leader(tp)
        if leader is None:
            appended[tp] = AppendResult(Outcome.FAILED, cluster.leader_error(tp))
            core.invalidate_metadata()
        else:
            by_leader.setdefault(leader, {})[tp] = request
    rounds = [_append_at(core, node, part, timeout_ms) for node, part in by_leader.items()]
    for part in await asyncio.gather(*rounds):
        appended.update(part)
    return appended


async def _append_at(
    core: Core,
    node_id: int,
    requests: Mapping[TopicPartition, AppendRequest],
    timeout_ms: int | None,
) -> AppendResults:
    try:
        link = await core.pool.link(node_id, PRODUCE)
    except (ConnectionLost, RequestTimedOut) as error:
        core.invalidate_metadata()
        return _same_result(
            requests, AppendResult(Outcome.FAILED, Code.NETWORK_EXCEPTION, cause=error)
        )
    if not link.versions.finalized_features.get(FEATURE):
        raise UnsupportedByBroker("the cluster does not support compare-and-append")
    wait_ms = int(core.config.request_timeout_ms * _BROKER_SHARE)
    wait_ms = wait_ms if timeout_ms is None else timeout_ms
    entries = [
        AppendEntry(
            tp.topic, tp.partition, request.mirror_epoch, request.expected_end, request.batches
        )
        for tp, request in requests.items()
    ]
    try:
        answer = link.connection.submit(
            lambda correlation_id: encode_request(
                correlation_id=correlation_id,
                client_id=link.client_id,
                timeout_ms=wait_ms,
                entries=entries,
            ),
            name="COMPARE_AND_APPEND",
            timeout_s=max(core.request_timeout_s, wait_ms / 1000 / _BROKER_SHARE),
        )
        frame = await await_unless_replaced(core, answer, (node_id, link.connection), requests)
        answers = decode_response(frame)
    except (ConnectionLost, RequestTimedOut) as error:
        core.invalidate_metadata()
        outcome = Outcome.UNKNOWN if error.sent else Outcome.FAILED
        return _same_result(requests, AppendResult(outcome, Code.NETWORK_EXCEPTION, cause=error))
    except WireError as error:
        malformed = ClientError(f"malformed response: {error}")
        return _same_result(
            requests, AppendResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION, cause=malformed)
        )
    return _results(core, requests, answers)


def _results(
    core: Core, requests: Mapping[TopicPartition, AppendRequest], answers: Sequence[EntryAnswer]
) -> AppendResults:
    unknown = AppendResult(Outcome.UNKNOWN, Code.UNKNOWN_SERVER_ERROR)
    appended = _same_result(requests, unknown)
    for answer in answers:
        tp = TopicPartition(answer.topic, answer.partition)
        if tp in appended:
            is_refused = answer.error_code in _REFUSED
            appended[tp] = AppendResult(
                Outcome.FAILED if is_refused else outcome_of(answer.error_code, acks=ACKS_ALL),
                answer.error_code,
                answer.log_end,
                answer.error_message,
            )
        if answer.error_code in INVALIDATES_METADATA:
            core.invalidate_metadata()
    return appended


def _same_result(
    requests: Mapping[TopicPartition, AppendRequest], result: AppendResult
) -> AppendResults:
    return dict.fromkeys(requests, result)
