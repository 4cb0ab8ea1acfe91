"""Raw produce: whole batches, one attempt, and the exact outcome of each.

Rules of this file:
- Nothing is retried here and no batch is changed: sessions do that.
- A result is *failed* only if the batch is certainly not in the log: refused before the append, or
  not sent. A lost connection, a timeout or a malformed response is *unknown*.
- Two batches for one partition in one request are refused before they are sent: a broker would
  use the last one, drop the first, and report success.
- Batches are sent from the caller's memory, which must not change before the result is available:
  a part of it may still be in the socket's buffer.
- `submit_produce` sends the request before it returns, so the order of calls is the order on the
  wire.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from shoal.client.cluster.router import Core
from shoal.client.codes import INVALIDATES_METADATA, Code, outcome_of
from shoal.client.errors import ClientError, ConnectionLost, RequestTimedOut
from shoal.client.results import ProduceResult
from shoal.client.transport.connection import Connection
from shoal.client.transport.handshake import Link
from shoal.client.transport.pool import PRODUCE
from shoal.client.transport.replaced_broker import await_unless_replaced, watch_for_replacement
from shoal.model.errors import WireError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.produce import (
    PRODUCE_VERSIONS,
    ProduceAnswer,
    ProducePartition,
    Records,
    decode_produce_response,
    encode_produce_request,
)

Produced = dict[TopicPartition, ProduceResult]

# From this version on a batch adds its partition to the transaction implicitly (KIP-890).
FIRST_IMPLICIT_JOIN_VERSION: Final = 12
# Later versions identify topics by their id.
_LAST_VERSION_WITH_NAMES: Final = 12
_NAMES: Final = {version: f"PRODUCE v{version}" for version in PRODUCE_VERSIONS}
_OK: Final = Outcome.OK
_UNANSWERED: Final = ProduceResult(Outcome.UNKNOWN, Code.UNKNOWN_SERVER_ERROR)
# Share of the request timeout that the broker may use, so that its response arrives before the
# client gives up.
_BROKER_SHARE: Final = 0.8


async def produce_to(
    core: Core,
    node_id: int,
    batches: Mapping[TopicPartition, Records],
    *,
    acks: int = -1,
    timeout_ms: int | None = None,
    transactional_id: str | None = None,
    channel: str = PRODUCE,
) -> Produced:
    """One request to one broker; errors are in the results."""
    try:
        link = await core.pool.link(node_id, channel)
    except (ConnectionLost, RequestTimedOut) as error:
        core.invalidate_metadata()
        return _same_result(batches, _unsent_result(error))
    return await submit_produce(
        core,
        node_id,
        link,
        batches,
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
    )


async def produce(
    core: Core,
    batches: Mapping[TopicPartition, Records],
    *,
    acks: int = -1,
    timeout_ms: int | None = None,
    transactional_id: str | None = None,
) -> Produced:
    """One request to each leader, all at once."""
    cluster = await core.metadata({tp.topic for tp in batches})
    by_leader: dict[int, dict[TopicPartition, Records]] = {}
    produced: Produced = {}
    for tp, records in batches.items():
        leader = cluster.leader(tp)
        if leader is None:
            produced[tp] = ProduceResult(Outcome.FAILED, cluster.leader_error(tp))
            core.invalidate_metadata()
        else:
            by_leader.setdefault(leader, {})[tp] = records
    rounds = [
        produce_to(
            core,
            node,
            part,
            acks=acks,
            timeout_ms=timeout_ms,
            transactional_id=transactional_id,
        )
        for node, part in by_leader.items()
    ]
    for part in await asyncio.gather(*rounds):
        produced.update(part)
    return produced


def submit_produce(
    core: Core,
    node_id: int,
    link: Link,
    batches: Mapping[TopicPartition, Records],
    *,
    acks: int,
    timeout_ms: int | None = None,
    transactional_id: str | None = None,
) -> Awaitable[Produced]:
    """Send a request now; await the return value for the results."""
    call = begin_produce(
        core,
        node_id,
        link,
        batches,
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
    )
    return _await_results(call)


async def _await_results(call: "ProduceCall") -> Produced:
    broker = (call.node_id, call.connection)
    waiting = await_unless_replaced(call.core, call.answer, broker, call.batches)
    with suppress(ConnectionLost, RequestTimedOut):  # `results` reads it again
        await waiting
    return call.results()


class ProduceCall(NamedTuple):
    """A request that was sent. Once `answer` is done, `results` has the results."""

    core: Core
    node_id: int
    connection: Connection
    batches: Mapping[TopicPartition, Records]
    version: int
    acks: int
    answer: asyncio.Future[memoryview]

    def results(self) -> Produced:
        """The results; errors are in them."""
        batches = self.batches
        try:
            frame = self.answer.result()
        except (ConnectionLost, RequestTimedOut) as error:
            self.core.invalidate_metadata()
            return _same_result(
                batches, _unknown_result(error) if error.sent else _unsent_result(error)
            )
        if self.acks == 0:
            return _same_result(batches, ProduceResult(Outcome.UNKNOWN))
        try:
            answers = decode_produce_response(self.version, frame)
        except WireError as error:
            return _same_result(
                batches, _unknown_result(ClientError(f"malformed response: {error}"))
            )
        return self._by_partition(answers)

    def _by_partition(self, answers: list[ProduceAnswer]) -> Produced:
        acks, batches = self.acks, self.batches
        produced: Produced = {}
        for tp, one in zip(batches, answers, strict=False):
            if one.partition != tp.partition or one.topic != tp.topic:
                # Brokers may answer in another order, and leave partitions out.
                produced = _same_result(batches, _UNANSWERED)
                given = {TopicPartition(each.topic, each.partition): each for each in answers}
                produced |= {tp: _result(given[tp], acks) for tp in batches if tp in given}
                break
            produced[tp] = _result(one, acks)
        if any(one.error_code in INVALIDATES_METADATA for one in answers if one.error_code):
            self.core.invalidate_metadata()
        return (
            _same_result(batches, _UNANSWERED) | produced
            if len(produced) < len(batches)
            else produced
        )

    def watch(self) -> None:
        """Close the connection if other brokers replace this one while it is silent.

        For callers that do not await the answer.
        """
        broker = (self.node_id, self.connection)
        stop = watch_for_replacement(self.core, broker, self.batches)
        self.answer.add_done_callback(lambda _: stop())


def begin_produce(
    core: Core,
    node_id: int,
    link: Link,
    batches: Mapping[TopicPartition, Records],
    *,
    acks: int,
    timeout_ms: int | None = None,
    transactional_id: str | None = None,
) -> ProduceCall:
    """Send a request now."""
    joins = transactional_id is None or link.versions.transaction_version >= 2
    version = link.versions.newest(
        ApiKey.PRODUCE,
        at_least=PRODUCE_VERSIONS[0],
        at_most=_LAST_VERSION_WITH_NAMES if joins else FIRST_IMPLICIT_JOIN_VERSION - 1,
    )
    wait_ms, timeout_s = _times(core, timeout_ms)
    partitions = [ProducePartition(tp.topic, tp.partition, data) for tp, data in batches.items()]
    answer = link.connection.submit(
        lambda correlation_id: encode_produce_request(
            version,
            correlation_id=correlation_id,
            client_id=link.client_id,
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=wait_ms,
            partitions=partitions,
        ),
        name=_NAMES[version],
        timeout_s=timeout_s,
        expects_answer=acks != 0,
    )
    return ProduceCall(core, node_id, link.connection, batches, version, acks, answer)


def _times(core: Core, timeout_ms: int | None) -> tuple[int, float]:
    """How long the broker may wait for followers, and how long the client waits for it."""
    if timeout_ms is None:
        return int(core.config.request_timeout_ms * _BROKER_SHARE), core.request_timeout_s
    return timeout_ms, max(core.request_timeout_s, timeout_ms / 1000 / _BROKER_SHARE)


def _result(answer: ProduceAnswer, acks: int) -> ProduceResult:
    if not answer.error_code:
        return ProduceResult(_OK, 0, *answer[3:6])
    return ProduceResult(
        outcome_of(answer.error_code, acks=acks),
        answer.error_code,
        answer.base_offset,
        answer.append_time_ms,
        answer.log_start_offset,
        answer.error_message,
    )


def _same_result(batches: Mapping[TopicPartition, Records], result: ProduceResult) -> Produced:
    return dict.fromkeys(batches, result)


def _unknown_result(error: ClientError) -> ProduceResult:
    return ProduceResult(Outcome.UNKNOWN, Code.NETWORK_EXCEPTION, cause=error)


def _unsent_result(error: ClientError) -> ProduceResult:
    return ProduceResult(Outcome.FAILED, Code.NETWORK_EXCEPTION, cause=error)
