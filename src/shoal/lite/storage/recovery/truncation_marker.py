"""A file that says that records were lost from a log, until the controller knows it.

A process that opens a damaged log truncates it after the last valid batch, and the next process
finds nothing wrong with it. So the marker is written before the truncation, and stays if the
process is killed before it has reported the loss to the controller. A power loss may remove it:
then the controller does not rely on the log anyway.
"""

from pathlib import Path

TRUNCATION_MARKER = "was-cut"


class TruncationMarker:
    """The marker file in a log's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRUNCATION_MARKER

    @property
    def is_set(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        self._path.touch()

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
