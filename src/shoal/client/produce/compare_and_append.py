"""Compare-and-append: a mirror's way to write to Kafka Lite at the offsets of its source.

    appended = await client.compare_and_append({tp: Appendix(end, epoch, batches)})
    if appended[tp].is_mismatch:
        end = appended[tp].log_end     # go on from there

Rules of this file:
- One try, as raw produce: whatever goes wrong is in the results, and a result is *failed* only if
  nothing was written. After an unknown one ask again: the answer is the true end.
- A broker that does not offer it raises `UnsupportedByBroker`.
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
from shoal.client.transport.replaced_broker import unless_replaced
from shoal.model.errors import WireError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.compare_and_append import (
    FEATURE,
    Entry,
    EntryAnswer,
    decode_response,
    encode_request,
)
from shoal.wire.framing import Part

# Beside those that Produce refuses with.
_REFUSED = frozenset({Code.OFFSET_OUT_OF_RANGE, Code.UNSUPPORTED_VERSION})
_BROKER_SHARE = 0.8


class Appendix(NamedTuple):
    """What to append to a partition, if its log ends at `expected_end`.

    Batches carry their offsets, and no producer ids. Without any, the mirror takes the partition
    over, and learns whether the log ends there.
    """

    expected_end: int
    mirror_epoch: int
    batches: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of it; `log_end` is where the log ends, on all in-sync replicas."""

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
        """Nothing was written, because the log ends elsewhere, at `log_end`."""
        return self.error_code == Code.OFFSET_OUT_OF_RANGE

    @property
    def is_fenced(self) -> bool:
        """Nothing was written, because a later mirror has taken over."""
        return self.error_code == Code.PRODUCER_FENCED


Appended = dict[TopicPartition, AppendResult]


async def compare_and_append(
    core: Core, wishes: Mapping[TopicPartition, Appendix], *, timeout_ms: int | None = None
) -> Appended:
    """One request to each leader, all at once."""
    cluster = await core.metadata({tp.topic for tp in wishes})
    by_leader: dict[int, dict[TopicPartition, Appendix]] = {}
    appended: Appended = {}
    for tp, wish in wishes.items():
        leader = cluster.leader(tp)
        if leader is None:
            appended[tp] = AppendResult(Outcome.FAILED, cluster.problem(tp))
            core.distrust_metadata()
        else:
            by_leader.setdefault(leader, {})[tp] = wish
    rounds = [_append_at(core, node, part, timeout_ms) for node, part in by_leader.items()]
    for part in await asyncio.gather(*rounds):
        appended.update(part)
    return appended


async def _append_at(
    core: Core,
    node_id: int,
    wishes: Mapping[TopicPartition, Appendix],
    timeout_ms: int | None,
) -> Appended:
    try:
        link = await core.pool.link(node_id, PRODUCE)
    except (ConnectionLost, RequestTimedOut) as error:
        core.distrust_metadata()
        return _all(wishes, AppendResult(Outcome.FAILED, Code.NETWORK_EXCEPTION, cause=error))
    if not link.versions.finalized_features.get(FEATURE):
        raise UnsupportedByBroker("the cluster does not offer compare-and-append")
    wait_ms = int(core.config.request_timeout_ms * _BROKER_SHARE)
    wait_ms = wait_ms if timeout_ms is None else timeout_ms
    entries = [
        Entry(tp.topic, tp.partition, wish.mirror_epoch, wish.expected_end, wish.batches)
        for tp, wish in wishes.items()
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
        frame = await unless_replaced(core, answer, (node_id, link.connection), wishes)
        answers = decode_response(frame)
    except (ConnectionLost, RequestTimedOut) as error:
        core.distrust_metadata()
        outcome = Outcome.UNKNOWN if error.sent else Outcome.FAILED
        return _all(wishes, AppendResult(outcome, Code.NETWORK_EXCEPTION, cause=error))
    except WireError as error:
        lost = ClientError(f"{error}: an answer that cannot be read")
        return _all(wishes, AppendResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION, cause=lost))
    return _results(core, wishes, answers)


def _results(
    core: Core, wishes: Mapping[TopicPartition, Appendix], answers: Sequence[EntryAnswer]
) -> Appended:
    unknown = AppendResult(Outcome.UNKNOWN, Code.UNKNOWN_SERVER_ERROR)
    appended = _all(wishes, unknown)
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
            core.distrust_metadata()
    return appended


def _all(wishes: Mapping[TopicPartition, Appendix], result: AppendResult) -> Appended:
    return dict.fromkeys(wishes, result)
