"""Deletes records at the target that the source has deleted at the start of its log.

Rules:
- The source's log start is translated by the offset map. Partitions that are not copied that far
  are skipped.
- The log start only moves forwards, and only where the target has older records than the source.
  Topics with cleanup.policy=compact do not allow this and are skipped.
"""

import logging

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import KafkaError
from shoal.client.results import EARLIEST
from shoal.mirror.translation import ANSWER_S, Translator

_log = logging.getLogger(__name__)


class LogStarts:
    """Advances the log starts of a target to those of its source."""

    def __init__(self, source: Client, target: Client, translator: Translator) -> None:
        self._source = source
        self._target = target
        self._translator = translator

    async def follow(self) -> None:
        await self._translator.refresh()
        partitions = self._translator.partitions
        if not partitions:
            return
        asked = dict.fromkeys(partitions, EARLIEST)
        firsts = await self._source.list_offsets_or_errors(asked, timeout_s=ANSWER_S)
        for tp, reason in firsts.errors.items():
            _log.warning("cannot read the log start of source partition %s: %s", tp, reason)
        for tp, first in firsts.offsets.items():
            place = self._translator.translate(tp, first.offset)
            offset = place.target_offset
            if offset is None or offset <= self._translator.log_start(place.target):
                continue
            try:
                await self._target.admin.delete_records({place.target: offset})
            except KafkaError as error:
                if error.code != Code.POLICY_VIOLATION:
                    _log.warning(
                        "cannot advance the log start of target partition %s: %s",
                        place.target,
                        error,
                    )
            else:
                _log.info(
                    "advanced the log start of target partition %s to %d", place.target, offset
                )
