"""Where compare-and-append begins or goes on: at the end of the target's log.

Rules:
- A start takes each partition over under an epoch above the last one, and is told the end once
  that is on all in-sync replicas. From then on an older mirror is refused.
- All below the end is from the source, at the source's own offsets, if its last batch is: nobody
  else's records stand before it, because this delivery writes nothing behind an end that it does
  not expect. Where the target ends behind the checkpoint, that batch is compared with the source
  before anything is written (`shoal.mirror.copy.delivery.compare_and_append`).
- The checkpoint tells whose topic it is, and how far the source was dropped on purpose behind it.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.errors import error_for
from shoal.client.produce.compare_and_append import Appendix, AppendResult
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.run.resume import Resume
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch

_log = logging.getLogger(__name__)


class TakenOver(NamedTuple):
    """Where one partition begins or continues."""

    checkpoint: Checkpoint
    position: int  # in the source
    end: int  # of the target
    tail: Batch | None = None  # the target's last batch, where it must be compared


class TakeOver:
    """Finds the starts of a mirror's partitions."""

    def __init__(self, target: Client, resume: Resume) -> None:
        self._target = target
        self._resume = resume

    async def starts(self, routes: Iterable[Route]) -> dict[Route, TakenOver]:
        wanted = list(routes)
        known = await self._resume.known(wanted)
        # All at once; what that did not settle is asked for one by one.
        answers = await self._target.compare_and_append(
            {route.target: _wish(one) for route, one in known.items()}
        )
        taken = await asyncio.gather(
            *(self._take(r.target, known[r], answers[r.target]) for r in wanted)
        )
        return dict(zip(wanted, taken, strict=True))

    async def _take(
        self, tp: TopicPartition, checkpoint: Checkpoint, answer: AppendResult
    ) -> TakenOver:
        epoch = checkpoint.mirror_epoch + 1
        is_settled = answer.is_ok or answer.is_mismatch
        end = answer.log_end if is_settled else await self._end(tp, _wish(checkpoint))
        is_new = checkpoint.mirror_epoch == 0
        if end < checkpoint.target_offset and not is_new:
            raise ConfigError(
                f"the target's partition {tp} is not as this mirror left it: it had "
                f"{checkpoint.target_offset} offsets and ends at {end}: records are gone",
                remedy="compare both with `shoal mirror verify`, then delete the target's topic: "
                "it is filled again",
            )
        if end < checkpoint.target_offset or (is_new and end > checkpoint.source_offset):
            raise ConfigError(
                f"the target's partition {tp} ends at {end}; "
                f"source offset {checkpoint.source_offset} cannot follow there",
                remedy="delete the target's topic, or mirror with --delivery idempotent",
            )
        _log.info("%s goes on at offset %d, as mirror of epoch %d", tp, end, epoch)
        known = replace(checkpoint, mirror_epoch=epoch)
        if end > checkpoint.target_offset and not is_new:
            tail = await self._resume.find_tail(tp, checkpoint, end)
            if tail is not None:
                return TakenOver(known, tail.base_offset, end, tail)
            _log.warning(
                "%s ends at %d, and its records since %d are deleted: they cannot be compared "
                "with the source",
                tp,
                end,
                checkpoint.target_offset,
            )
        position = max(end, checkpoint.source_offset)
        known = replace(known, source_offset=position, target_offset=end)
        return TakenOver(known, position, end)

    async def _end(self, tp: TopicPartition, wish: Appendix) -> int:
        async def attempt() -> int:
            result = (await self._target.compare_and_append({tp: wish}))[tp]
            if result.is_fenced:
                raise ConfigError(
                    f"{tp}: {result.error_message}",
                    remedy="let only one mirror write to this topic, under one --name",
                )
            if result.is_ok or result.is_mismatch:
                return result.log_end
            raise result.cause or error_for(
                result.error_code, topic=tp.topic, partition=tp.partition
            )

        return await self._target.retrying(attempt)


def _wish(checkpoint: Checkpoint) -> Appendix:
    """To take over, and to be told the end; it carries no batches."""
    return Appendix(checkpoint.target_offset, checkpoint.mirror_epoch + 1)
