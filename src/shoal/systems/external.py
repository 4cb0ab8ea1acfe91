"""An external cluster: used by a run, never started, stopped or made to fail."""

from pathlib import Path
from typing import Self

from shoal.model.errors import SystemFailure
from shoal.model.nodes import Node
from shoal.runtime.context_managers import StopsOnExit


class ExternalCluster(StopsOnExit):
    """A cluster that is known by its addresses; operations on its processes are refused."""

    engine = "external"

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap

    def start(self) -> Self:
        return self

    def stop(self) -> None:
        """Does nothing: the cluster keeps running."""

    def nodes(self) -> list[Node]:
        """Empty: its processes are not visible from here."""
        return []

    def log_dirs(self) -> dict[int, Path] | None:
        return None

    def kill(self, node_id: int) -> None:
        raise self._not_owned_error(f"kill node {node_id}")

    def stop_node(self, node_id: int) -> None:
        raise self._not_owned_error(f"stop node {node_id}")

    def pause(self, node_id: int) -> None:
        raise self._not_owned_error(f"pause node {node_id}")

    def resume(self, node_id: int) -> None:
        raise self._not_owned_error(f"resume node {node_id}")

    def restart(self, node_id: int) -> None:
        raise self._not_owned_error(f"restart node {node_id}")

    def _not_owned_error(self, what: str) -> SystemFailure:
        return SystemFailure(
            f"cannot {what} of {self.name}: shoal did not start this external cluster",
            remedy="use the engine lite or apache for that fault",
        )
