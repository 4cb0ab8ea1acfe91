"""The command line of shoal, with a mirror that fetches little of a partition at once.

    python -m support.mirror.small_fetches mirror run …

A copy that is behind fetches up to 1 MiB of a partition, and `--depth auto` judges by its mean. So
that short stretches of tiny and of large batches are seen as such, each fetch has less.
"""

from dataclasses import replace
from typing import Any

from shoal.cli.main import run
from shoal.mirror.config import MirrorConfig

PARTITION_BYTES = 8 << 10


def fetch_little() -> None:
    """Workers are given the configuration of the command, so they fetch as little."""
    original = MirrorConfig.__post_init__

    def limit(self: MirrorConfig, *arguments: Any) -> None:
        limits = replace(self.limits, partition_bytes=PARTITION_BYTES)
        object.__setattr__(self, "limits", limits)
        original(self, *arguments)

    MirrorConfig.__post_init__ = limit  # type: ignore[method-assign]


if __name__ == "__main__":
    fetch_little()
    run()
