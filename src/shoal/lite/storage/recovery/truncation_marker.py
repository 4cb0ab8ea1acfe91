"""A file that says that there was more in a log than could be read, until that is told.

Who opens a damaged log cuts it behind the last whole batch, and the next process finds nothing
wrong with it. So this is written before the cut, and stays when the process is killed before it
has told the controller. A power loss may take it: then nobody relies on the log anyway.
"""

from pathlib import Path

CUT_MARK = "was-cut"


class CutMark:
    """The file in a log's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CUT_MARK

    @property
    def is_set(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        self._path.touch()

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
