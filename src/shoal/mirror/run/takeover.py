"""Finds where compare-and-append starts or resumes: at the log end of the target.

Rules:
- A start takes each partition over with an epoch above the last one. The response contains the log
  end once the epoch is on all in-sync replicas. From then on an older mirror is fenced.
- If the target's last batch equals the source's, all records below the log end are from the source,
  at the source's offsets: this delivery never appends behind an unexpected end, so no other
  producer's records can be before that batch. Where the target ends after the checkpoint, the last
  batch is compared with the source before anything is written
  (`shoal.mirror.copy.delivery.compare_and_append`).
- The checkpoint identifies the topics, and says up to where records after the target's end were
  dropped on purpose.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.errors import error_for
from shoal.client.produce.compare_and_append import AppendRequest, AppendResult
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.run.resume import StartFinder
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch

_log = logging.getLogger(__name__)


class AppendStart(NamedTuple):
    """Where one partition starts or resumes."""

    checkpoint: Checkpoint
    position: int  # in the source
    end: int  # of the target
    tail: Batch | None = None  # the target's last batch, if it must be compared


class AppendTakeover:
    """Takes partitions over and finds where they start or resume."""

    def __init__(self, target: Client, resume: StartFinder) -> None:
        self._target = target
        self._resume = resume

    async def find_starts(self, routes: Iterable[Route]) -> dict[Route, AppendStart]:
        wanted = list(routes)
        known = await self._resume.resolve_checkpoints(wanted)
        # One request for all; partitions without a clear answer are retried one by one.
        answers = await self._target.compare_and_append(
            {route.target: _takeover_request(one) for route, one in known.items()}
        )
        taken = await asyncio.gather(
            *(self._take(r.target, known[r], answers[r.target]) for r in wanted)
        )
        return dict(zip(wanted, taken, strict=True))

    async def _take(
        self, tp: TopicPartition, checkpoint: Checkpoint, answer: AppendResult
    ) -> AppendStart:
        epoch = checkpoint.mirror_epoch + 1
        is_settled = answer.is_ok or answer.is_mismatch
        end = answer.log_end if is_settled else await self._end(tp, _takeover_request(checkpoint))
        is_new = checkpoint.mirror_epoch == 0
        if end < checkpoint.target_offset and not is_new:
            raise ConfigError(
                f"the target partition {tp} is not as this mirror left it: its log ended at offset "
                f"{checkpoint.target_offset}, and now it ends at {end}: records are lost",
                remedy="compare both topics with `shoal mirror verify`, then delete the target "
                "topic: it is filled again",
            )
        if end < checkpoint.target_offset or (is_new and end > checkpoint.source_offset):
            raise ConfigError(
                f"the target partition {tp} ends at offset {end}; "
                f"source offset {checkpoint.source_offset} cannot be appended there",
                remedy="delete the target topic, or mirror with --delivery idempotent",
            )
        _log.info("%s continues at offset %d with mirror epoch %d", tp, end, epoch)
        known = replace(checkpoint, mirror_epoch=epoch)
        if end > checkpoint.target_offset and not is_new:
            tail = await self._resume.find_tail(tp, checkpoint, end)
            if tail is not None:
                return AppendStart(known, tail.base_offset, end, tail)
            _log.warning(
                "%s ends at offset %d, and its records from %d on are deleted: they cannot be "
                "compared with the source",
                tp,
                end,
                checkpoint.target_offset,
            )
        position = max(end, checkpoint.source_offset)
        known = replace(known, source_offset=position, target_offset=end)
        return AppendStart(known, position, end)

    async def _end(self, tp: TopicPartition, wish: AppendRequest) -> int:
        async def attempt() -> int:
            result = (await self._target.compare_and_append({tp: wish}))[tp]
            if result.is_fenced:
                raise ConfigError(
                    f"{tp}: {result.error_message}",
                    remedy="let only one mirror write to this topic, with one --name",
                )
            if result.is_ok or result.is_mismatch:
                return result.log_end
            raise result.cause or error_for(
                result.error_code, topic=tp.topic, partition=tp.partition
            )

        return await self._target.with_retries(attempt)


def _takeover_request(checkpoint: Checkpoint) -> AppendRequest:
    """A request without batches: it takes the partition over and returns the log end."""
    return AppendRequest(checkpoint.target_offset, checkpoint.mirror_epoch + 1)
