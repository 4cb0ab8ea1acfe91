"""Scripted brokers on real sockets: they answer, refuse, send wrong bytes, or stay silent.

A `ScriptedCluster` has several listening brokers and one set of facts (topics, leaders,
finalised features). Each API has a handler; tests replace handlers, or queue one-time answers
in front of them. Produce keeps batches in memory and checks sequences as Kafka does.
"""

import asyncio
import contextlib
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from shoal.client.codes import Code
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.building import build
from shoal.wire.fetch import (
    FetchedPartition,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_response,
)
from shoal.wire.framing import frame
from shoal.wire.messages import (
    RequestFrame,
    decode_body,
    decode_request_header,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from shoal.wire.produce import (
    ProduceAnswer,
    ProduceRequest,
    decode_produce_request,
    encode_produce_response,
)

TOPIC_ID = uuid.UUID(int=7)
RANGES: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (0, 12),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (0, 12),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}

Values = dict[str, Any]
# What a handler may return: field values, answers for Produce, a frame, None for no answer.
Answer = Any
Handler = Callable[["Asked"], Answer | Awaitable[Answer]]


class Hangup(Exception):
    """Raised by a handler to close the connection instead of answering."""


@dataclass
class Asked:
    """One request as a broker got it."""

    node_id: int
    header: RequestFrame
    body: Any

    @property
    def version(self) -> int:
        return self.header.api_version


@dataclass
class Log:
    """One partition."""

    leader: int
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    recent: dict[tuple[int, int, int], int] = field(default_factory=dict)


class ScriptedCluster:
    """`async with ScriptedCluster(brokers=2) as cluster:`"""

    def __init__(self, brokers: int = 1, *, partitions: int = 2) -> None:
        self.nodes = [_Node(self, number + 1) for number in range(brokers)]
        self.logs = {
            TopicPartition("t", number): Log(leader=number % brokers + 1)
            for number in range(partitions)
        }
        self.asked: list[Asked] = []
        self.handlers: dict[int, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
        }
        self.once: dict[int, deque[Handler]] = defaultdict(deque)
        self.ranges = dict(RANGES)
        self.features: dict[str, int] = {}
        self.coordinator = 1
        self.controller = 1
        self.topic_id: uuid.UUID | None = TOPIC_ID
        self.next_producer_id = 1000

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            await node.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def count(self, api_key: int) -> int:
        return sum(asked.header.api_key == api_key for asked in self.asked)

    def bodies(self, api_key: int) -> list[Any]:
        return [asked.body for asked in self.asked if asked.header.api_key == api_key]

    def answer_once(self, api_key: int, *answers: Answer) -> None:
        """Answer the next requests of this kind so: a handler, or what it would return."""
        for answer in answers:
            handler = answer if callable(answer) else (lambda _, fixed=answer: fixed)
            self.once[api_key].append(handler)

    async def handle(self, node_id: int, data: memoryview) -> list[Any] | None:
        """The framed answer to a request, or None for no answer."""
        header = decode_request_header(data)
        asked = Asked(node_id, header, _body(header, data))
        self.asked.append(asked)
        queued = self.once[header.api_key]
        handler = queued.popleft() if queued else self.handlers[header.api_key]
        answer = handler(asked)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None:
            return None
        if isinstance(answer, dict):
            cls = response_class(header.api_key, header.api_version)
            body = build(cls, {"throttle_time": 0} | answer)
            answer = [encode_response(body, correlation_id=header.correlation_id)]
        return frame(answer)

    # The handlers of a broker in good health

    def _api_versions(self, asked: Asked) -> Answer:
        keys = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in self.ranges.items()
        ]
        low, high = self.ranges[ApiKey.API_VERSIONS]
        if not low <= asked.version <= high:
            cls = response_class(ApiKey.API_VERSIONS, 0)
            refusal = build(cls, {"error_code": 35, "api_keys": keys})
            return [encode_response(refusal, correlation_id=asked.header.correlation_id)]
        features = [
            {"name": name, "max_version_level": level, "min_version_level": 1}
            for name, level in self.features.items()
        ]
        return {"error_code": 0, "api_keys": keys, "finalized_features": features}

    def _metadata(self, asked: Asked) -> Values:
        named = asked.body.topics
        wanted = {"t"} if named is None else {topic.name for topic in named}
        partitions = [
            {
                "error_code": 0,
                "partition_index": tp.partition,
                "leader_id": log.leader,
                "leader_epoch": log.epoch,
                "replica_nodes": [node.node_id for node in self.nodes],
                "isr_nodes": [node.node_id for node in self.nodes],
                "offline_replicas": [],
            }
            for tp, log in self.logs.items()
        ]
        topics = [
            {
                "error_code": 0 if name == "t" else 3,
                "name": name,
                "topic_id": self.topic_id if name == "t" else None,
                "is_internal": False,
                "partitions": partitions if name == "t" else [],
            }
            for name in sorted(wanted)
        ]
        return {
            "brokers": [
                {"node_id": node.node_id, "host": "127.0.0.1", "port": node.port, "rack": None}
                for node in self.nodes
                if node.is_listed
            ],
            "cluster_id": "scripted",
            "controller_id": self.controller,
            "topics": topics,
        }

    def _produce(self, asked: Asked) -> Answer:
        request: ProduceRequest = asked.body
        answers = []
        for part in request.partitions:
            tp = TopicPartition(part.topic, part.partition)
            answers.append(self.append(asked.node_id, tp, bytes(part.records)))
        if request.acks == 0:
            return None
        return produce_answer(asked, answers)

    def append(self, node_id: int, tp: TopicPartition, data: bytes) -> ProduceAnswer:
        log = self.logs[tp]
        if log.leader != node_id:
            return ProduceAnswer(*tp, Code.NOT_LEADER_OR_FOLLOWER)
        batch = Batch(memoryview(data))
        batch.check_crc()
        key = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        if batch.producer_id >= 0:
            if key in log.recent:
                return ProduceAnswer(*tp, 0, log.recent[key])
            epoch, expected = log.sequences.get(
                batch.producer_id, (batch.producer_epoch, batch.base_sequence)
            )
            if batch.producer_epoch > epoch:
                expected = 0
            if batch.base_sequence != expected:
                return ProduceAnswer(*tp, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
            log.sequences[batch.producer_id] = (batch.producer_epoch, batch.last_sequence + 1)
            log.recent[key] = log.end
        offset = log.end
        stored = Batch(memoryview(bytearray(data)))
        stored.edit(base_offset=offset, leader_epoch=log.epoch)
        log.batches.append(bytes(stored.view))
        log.end = stored.next_offset
        return ProduceAnswer(*tp, 0, offset)

    def _fetch(self, asked: Asked) -> Answer:
        request: FetchRequest = asked.body
        fetched = []
        for part in request.partitions:
            name = part.topic or "t"
            log = self.logs[TopicPartition(name, part.partition)]
            code = 0 if log.leader == asked.node_id else Code.NOT_LEADER_OR_FOLLOWER
            data = b"".join(
                batch
                for batch in log.batches
                if Batch(memoryview(batch)).last_offset >= part.offset
            )
            if part.offset > log.end:
                code = Code.OFFSET_OUT_OF_RANGE
            fetched.append(
                FetchedPartition(
                    part.topic,
                    part.topic_id,
                    part.partition,
                    error_code=code,
                    high_watermark=log.end,
                    last_stable_offset=log.end,
                    records=memoryview(b"" if code else data),
                )
            )
        return fetch_answer(asked, fetched)

    def _init_producer_id(self, _: Asked) -> Values:
        self.next_producer_id += 1
        return {"error_code": 0, "producer_id": self.next_producer_id, "producer_epoch": 0}

    def _find_coordinator(self, asked: Asked) -> Values:
        node = self.nodes[self.coordinator - 1]
        found = {
            "error_code": 0,
            "error_message": None,
            "node_id": node.node_id,
            "host": "127.0.0.1",
            "port": node.port,
        }
        if asked.version >= 4:
            return {"coordinators": [found | {"key": asked.body.coordinator_keys[0]}]}
        return found


class _Node:
    """One listening broker; its port survives a restart."""

    def __init__(self, cluster: ScriptedCluster, node_id: int) -> None:
        self.node_id = node_id
        self.port = 0
        self.is_listed = True
        self.connections = 0
        self._cluster = cluster
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        self._server = None

    def cut(self) -> None:
        """Cut all connections."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                data = memoryview(bytearray(await reader.readexactly(size)))
                answer = await self._cluster.handle(self.node_id, data)
                if answer is not None:
                    writer.writelines(bytes(part) for part in answer)
        except (asyncio.IncompleteReadError, ConnectionError, Hangup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def _body(header: RequestFrame, data: memoryview) -> Any:
    if header.api_key == ApiKey.PRODUCE:
        return decode_produce_request(header.api_version, data, header.body_position)
    if header.api_key == ApiKey.FETCH:
        return decode_fetch_request(header.api_version, data, header.body_position)
    if header.api_key == ApiKey.API_VERSIONS:
        return None
    cls = request_class(header.api_key, header.api_version)
    request = decode_body(data, cls, header.body_position)
    _, _, correlation_id, client_id, _ = header
    again = encode_request(request, correlation_id=correlation_id, client_id=client_id)
    assert data == again, "to the byte"
    return request


def produce_answer(asked: Asked, answers: list[ProduceAnswer]) -> list[Any]:
    correlation_id = asked.header.correlation_id
    return [encode_produce_response(asked.version, correlation_id=correlation_id, answers=answers)]


def refuse_all(code: int) -> Handler:
    """A Produce handler that refuses every partition."""

    def handler(asked: Asked) -> Answer:
        answers = [ProduceAnswer(p.topic, p.partition, code) for p in asked.body.partitions]
        return produce_answer(asked, answers)

    return handler


def fetch_answer(
    asked: Asked, partitions: list[FetchedPartition], session_id: int = 0
) -> list[Any]:
    return encode_fetch_response(
        asked.version,
        correlation_id=asked.header.correlation_id,
        session_id=session_id,
        error_code=0,
        partitions=partitions,
    )


def hang_up(_: Asked) -> Answer:
    """A handler that closes the connection."""
    raise Hangup


async def stay_silent(_: Asked) -> Answer:
    """A handler that never answers."""
    await asyncio.Event().wait()
