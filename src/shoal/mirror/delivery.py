"""How topics are delivered, chosen when they begin.

    wanted                  topic was delivered before    old records            else
    idempotent, auto  ──►   as it was                     compare-and-append     idempotent
                                                          if offered, else
                                                          transactional
    any other         ──►   always as wanted

`auto` takes compare-and-append for young records as well, where it is offered.

Rules:
- A target forgets an idempotent producer so long after the *timestamps* of its records
  (`producer.id.expiration.ms`, a day): a copy of older records has nothing that keeps a second
  process, or a repetition, from writing them twice. It is delivered otherwise, and that is said.
- Records count as old an hour before that time: they are still to be copied.
"""

import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.results import LATEST
from shoal.mirror.beginning import start_offsets
from shoal.mirror.modes import AUTO, COMPARE_AND_APPEND, IDEMPOTENT, TRANSACTIONAL
from shoal.model.topics import TopicPartition
from shoal.wire.compare_and_append import FEATURE

EXPIRATION: Final = "producer.id.expiration.ms"
_MARGIN_MS: Final = 3_600_000

_log = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """A delivery, and why it is not the one that was asked for."""

    delivery: str
    why: str | None = None


class Chooser:
    """Chooses for topics that this mirror has not delivered before."""

    def __init__(self, source: Client, target: Client, *, wanted: str, start: str) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._start = start

    def going_on(self, used: str) -> Chosen:
        """For a topic that was delivered before."""
        is_other = self._wanted not in (used, AUTO)
        return Chosen(used, "that is how it was delivered before" if is_other else None)

    async def choose(self, partitions: Sequence[TopicPartition]) -> dict[str, Chosen]:
        """For these partitions of the source, by topic."""
        topics = dict.fromkeys(tp.topic for tp in partitions)
        if self._wanted not in (AUTO, IDEMPOTENT):
            return dict.fromkeys(topics, Chosen(self._wanted))
        is_offered = await _is_offered(self._target)
        if self._wanted == AUTO and is_offered:
            return dict.fromkeys(topics, Chosen(COMPARE_AND_APPEND))
        chosen = dict.fromkeys(topics, Chosen(IDEMPOTENT))
        expiration_ms = await _expiration_ms(self._target)
        if expiration_ms is None:
            return chosen
        safe = Chosen(
            COMPARE_AND_APPEND if is_offered else TRANSACTIONAL,
            f"the source has records older than the {expiration_ms / 3_600_000:g} h for which "
            "the target remembers an idempotent producer",
        )
        old = await self._old_topics(partitions, expiration_ms)
        return chosen | dict.fromkeys(old, safe)

    async def _old_topics(
        self, partitions: Sequence[TopicPartition], expiration_ms: int
    ) -> set[str]:
        """Those that begin with records which the target's memory does not cover."""
        firsts = await start_offsets(self._source, list(partitions), self._start)
        age_ms = max(expiration_ms // 2, expiration_ms - _MARGIN_MS)
        limit_ms = max(0, time.time_ns() // 1_000_000 - age_ms)
        young = await self._source.list_offsets(dict.fromkeys(partitions, limit_ms))
        ends = await self._source.list_offsets(dict.fromkeys(partitions, LATEST))
        old = set()
        for tp in partitions:
            first_young = young[tp].offset if young[tp].offset >= 0 else ends[tp].offset
            if firsts[tp] < first_young:
                old.add(tp.topic)
        return old


async def _is_offered(target: Client) -> bool:
    link = await target.any_link()
    return bool(link.versions.finalized_features.get(FEATURE))


async def _expiration_ms(target: Client) -> int | None:
    """For how long the target remembers producers; None where it does not tell."""
    node_id = min(target.cluster.brokers)
    resource = Resource(ResourceType.BROKER, str(node_id))
    try:
        described = await target.admin.describe_configs([resource], names=[EXPIRATION])
        value = described[resource][EXPIRATION].value
    except (ClientError, KeyError) as error:
        _log.warning("the target does not tell its %s: %r", EXPIRATION, error)
        return None
    return None if value is None else int(value)
