"""Somebody else's cluster: used, never started, stopped or harmed."""

from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.model.errors import SystemFailure
from shoal.model.nodes import Node


class ExternalCluster:
    """A cluster by its addresses; everything that would change it is refused."""

    engine = "external"

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap

    def start(self) -> Self:
        return self

    def stop(self) -> None:
        """It goes on without us."""

    def nodes(self) -> list[Node]:
        """None of its processes are ours to see."""
        return []

    def log_dirs(self) -> dict[int, Path] | None:
        return None

    def kill(self, node_id: int) -> None:
        raise self._refused(f"kill node {node_id}")

    def stop_node(self, node_id: int) -> None:
        raise self._refused(f"stop node {node_id}")

    def pause(self, node_id: int) -> None:
        raise self._refused(f"pause node {node_id}")

    def resume(self, node_id: int) -> None:
        raise self._refused(f"resume node {node_id}")

    def restart(self, node_id: int) -> None:
        raise self._refused(f"restart node {node_id}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _refused(self, what: str) -> SystemFailure:
        return SystemFailure(
            f"cannot {what} of {self.name}: its processes are not ours",
            remedy="use the engine lite or apache for that fault",
        )
