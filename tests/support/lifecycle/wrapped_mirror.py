"""The command line of shoal with changes that only the matrix wants, in a process of its own.

LIFECYCLE_HIDE_IDS=FILE   as long as the file exists, the brokers on the ports that it lists
                          seem to be older than topic ids (Kafka 2.8)
LIFECYCLE_QUICK_DEPTH=1   adaptive depth judges by each fetch alone, since a play has few records
LIFECYCLE_SKIP=TOPIC      sabotage: every second batch of topics whose names begin so is
                          skipped as if it had never been there
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shoal.__main__ import run
from shoal.client.config import ClientConfig
from shoal.client.transport import handshake
from shoal.client.transport.connection import Connection
from shoal.client.transport.versions import BrokerVersions
from shoal.mirror.copy import depth
from shoal.mirror.copy.partition import PartitionCopier, PartitionMirror
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import iter_batches

HIDE_IDS: Final = "LIFECYCLE_HIDE_IDS"
SKIP: Final = "LIFECYCLE_SKIP"
QUICK_DEPTH: Final = "LIFECYCLE_QUICK_DEPTH"
# The newest versions without topic ids.
_WITHOUT_IDS: Final = {ApiKey.METADATA: 9, ApiKey.FETCH: 12}


def hide_ids(file: Path) -> None:
    """Agree with brokers on old versions, while the file names their ports."""
    negotiate = handshake._negotiate

    async def agree(
        connection: Connection, config: ClientConfig, timeout_s: float
    ) -> BrokerVersions:
        versions = await negotiate(connection, config, timeout_s)
        if str(connection.address).rpartition(":")[2] not in _ports(file):
            return versions
        old = {
            key: (low, min(high, _WITHOUT_IDS.get(ApiKey(key), high)))
            for key, (low, high) in versions.ranges.items()
        }
        return replace(versions, ranges=old)

    handshake._negotiate = agree


def _ports(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def skip_batches(prefix: str) -> None:
    """Pass over every second batch, silently."""
    fetched = PartitionCopier.on_fetched

    def skipping(self: PartitionMirror, records: memoryview, **rest: Any) -> bool:
        if not self.partition.topic.startswith(prefix):
            return fetched(self, records, **rest)
        is_good = True
        for batch in _from(iter_batches(records), self.position):
            if batch.base_offset // 10 % 2:
                self.position = batch.next_offset
            else:
                is_good = fetched(self, batch.view, **rest)
        return is_good

    PartitionCopier.on_fetched = skipping  # type: ignore[method-assign]


def _from(batches: Iterable[Any], position: int) -> list[Any]:
    return [batch for batch in batches if batch.last_offset >= position]


if __name__ == "__main__":
    if path := os.environ.get(HIDE_IDS):
        hide_ids(Path(path))
    if os.environ.get(QUICK_DEPTH):
        depth._MEMORY_BATCHES = 1  # type: ignore[misc]
    if chosen := os.environ.get(SKIP):
        skip_batches(chosen)
    run()
