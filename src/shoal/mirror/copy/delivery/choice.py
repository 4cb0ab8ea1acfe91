"""Chooses the delivery of a topic when its copy begins.

    wanted                  topic was delivered before    old records            else
    idempotent, auto  ──►   as it was                     compare-and-append     idempotent
                                                          if offered, else
                                                          transactional until it
                                                          has caught up
    any other         ──►   always as wanted

`auto` chooses compare-and-append for recent records as well, if the target offers it.

Rules:
- A target expires an idempotent producer some time after the *timestamps* of its records
  (`producer.id.expiration.ms`, a day). For a copy of older records nothing prevents a second
  process, or a retry, from writing duplicates. Such topics get another delivery, which is reported.
- The expiration is read until a broker has answered. Until then new topics wait to start.
- Records count as old an hour before the expiration, because copying them takes time. Messages of
  format 0 have no timestamps, and no target remembers their producer.
"""

import asyncio
import logging
import math
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import ClientError
from shoal.mirror.copy.delivery.names import AUTO, COMPARE_AND_APPEND, IDEMPOTENT, TRANSACTIONAL
from shoal.mirror.run.start_position import start_offsets
from shoal.model.topics import TopicPartition
from shoal.wire.batch import HEADER_SIZE, LENGTH_END, NO_TIMESTAMP
from shoal.wire.compare_and_append import FEATURE

EXPIRATION: Final = "producer.id.expiration.ms"
_MARGIN_MS: Final = 3_600_000
# Fetched of each partition, to find the age of its first records.
_LOOK_BYTES: Final = 65_536
# How long one broker may take to describe itself, and when all are asked again if none answered,
# or if they refused.
_ANSWER_S: Final = 5.0
_ASK_AGAIN_S: Final = 1.0
_REFUSED_AGAIN_S: Final = 60.0
_TIMESTAMP: Final = struct.Struct(">q")
# Position in a batch, and in a message of format 1; format 0 has no timestamp.
_MAX_TIMESTAMP_AT: Final = 35
_TIMESTAMP_AT: Final = 18
_MAGIC_AT: Final = 16
_LEAST_MESSAGE_BYTES: Final = 26
_LENGTH: Final = struct.Struct(">i")

_log = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """A delivery, and why it is not the configured one."""

    delivery: str
    why: str | None = None


class Chooser:
    """Chooses the delivery of topics that this mirror has not copied before."""

    def __init__(self, source: Client, target: Client, *, wanted: str, start: str) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._start = start
        self._expiration = _Expiration(target)

    def begin_new_at(self, start: str) -> None:
        """Set where partitions start that are found from now on."""
        self._start = start

    def keep_delivery(self, used: str) -> Chosen:
        """Keep the delivery of a topic that was copied before."""
        if used == TRANSACTIONAL and self.hands_over:
            return Chosen(used, "its old records are copied in transactions until it has caught up")
        is_other = self._wanted not in (used, AUTO)
        return Chosen(used, "it was delivered this way before" if is_other else None)

    @property
    def hands_over(self) -> bool:
        """Whether transactions are only for old records, and idempotent delivery follows."""
        return self._wanted in (AUTO, IDEMPOTENT)

    async def old_before_ms(self) -> int:
        """The time before which records are too old for idempotent delivery; 0 if unknown."""
        try:
            expiration_ms = await self.expiration_ms()
        except ClientError as error:
            _log.info("the age of records is not judged at the moment: %s", error)
            return 0
        if expiration_ms is None:
            return 0
        age_ms = max(expiration_ms // 2, expiration_ms - _MARGIN_MS)
        return time.time_ns() // 1_000_000 - age_ms

    async def expiration_ms(self) -> int | None:
        """producer.id.expiration.ms of the target; None if it may not be read, or does not exist.

        Raises an error that can be retried if no broker answers: whether records are old must not
        be guessed from a broker that is down for a moment.
        """
        return await self._expiration.read()

    async def choose(self, partitions: Sequence[TopicPartition]) -> dict[str, Chosen]:
        """Choose for these source partitions, by topic."""
        topics = dict.fromkeys(tp.topic for tp in partitions)
        if self._wanted not in (AUTO, IDEMPOTENT):
            return dict.fromkeys(topics, Chosen(self._wanted))
        is_offered = await _is_offered(self._target)
        if self._wanted == AUTO and is_offered:
            return dict.fromkeys(topics, Chosen(COMPARE_AND_APPEND))
        chosen = dict.fromkeys(topics, Chosen(IDEMPOTENT))
        expiration_ms = await self.expiration_ms()
        if expiration_ms is None:
            return chosen
        why = (
            f"the source has records older than the {expiration_ms / 3_600_000:g} h for which "
            "the target remembers an idempotent producer"
        )
        safe = Chosen(COMPARE_AND_APPEND, why)
        if not is_offered:
            safe = Chosen(TRANSACTIONAL, f"{why}; each partition is idempotent once it caught up")
        old = await self._old_topics(partitions, await self.old_before_ms())
        return chosen | dict.fromkeys(old, safe)

    async def _old_topics(self, partitions: Sequence[TopicPartition], limit_ms: int) -> set[str]:
        """Find topics whose first records are too old for idempotent delivery."""
        left = await start_offsets(self._source, list(partitions), self._start)
        old = set()
        # Only the first partition of a fetch is guaranteed a batch, so the order is rotated.
        for _ in partitions:
            fetched = await self._source.fetch(
                left, max_wait_ms=0, min_bytes=0, partition_max_bytes=_LOOK_BYTES
            )
            for tp, part in fetched.items():
                times = list(_timestamps(part.records))
                if any(time_ms < limit_ms for time_ms in times):
                    old.add(tp.topic)
                if times or part.error_code != Code.NONE or left[tp] >= part.high_watermark:
                    del left[tp]
            if not left:
                break
            first = next(iter(left))
            left[first] = left.pop(first)
        return old


def _timestamps(records: memoryview) -> Iterator[int]:
    """The maximum timestamps of fetched batches; the last batch may be incomplete."""
    position = 0
    while position + _LEAST_MESSAGE_BYTES <= len(records):
        magic = records[position + _MAGIC_AT]
        if magic == 0:
            yield NO_TIMESTAMP
        elif magic == 1:
            yield _TIMESTAMP.unpack_from(records, position + _TIMESTAMP_AT)[0]
        elif position + HEADER_SIZE <= len(records):
            yield _TIMESTAMP.unpack_from(records, position + _MAX_TIMESTAMP_AT)[0]
        position += LENGTH_END + max(0, _LENGTH.unpack_from(records, position + 8)[0])


async def _is_offered(target: Client) -> bool:
    link = await target.any_link()
    return bool(link.versions.finalized_features.get(FEATURE))


class _Expiration:
    """producer.id.expiration.ms of a cluster, which is read until a broker has answered."""

    def __init__(self, target: Client) -> None:
        self._target = target
        self._asking = asyncio.Lock()
        self._is_known = False
        self._value_ms: int | None = None
        self._failure: ClientError | None = None
        self._ask_after = -math.inf

    async def read(self) -> int | None:
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if not self._is_known and now >= self._ask_after:
                await self._ask()
                pause_s = _REFUSED_AGAIN_S if self._failure is None else _ASK_AGAIN_S
                self._ask_after = asyncio.get_running_loop().time() + pause_s
        if self._failure is not None:
            raise self._failure
        return self._value_ms

    async def _ask(self) -> None:
        """Ask one broker after the other. A refusal is asked again too: rights may be given."""
        for node_id in sorted(self._target.cluster.brokers):
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self._value_ms = await _read_expiration_ms(self._target, node_id)
            except TimeoutError:
                failure = ClientError(f"broker {node_id} of the target does not answer")
                failure.retriable = True
                self._failure = failure
            except ClientError as error:
                _log.warning("cannot read %s of the target: %s", EXPIRATION, error)
                self._failure = error if error.retriable else None
            else:
                self._is_known, self._failure = True, None
                return


async def _read_expiration_ms(target: Client, node_id: int) -> int | None:
    resource = Resource(ResourceType.BROKER, str(node_id))
    described = await target.admin.describe_configs([resource], names=[EXPIRATION])
    entry = described[resource].get(EXPIRATION)  # None before Apache Kafka 3.4
    return None if entry is None or entry.value is None else int(entry.value)
