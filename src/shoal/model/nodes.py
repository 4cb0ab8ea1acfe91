"""One process of a cluster under test, for all engines."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Node:
    """A broker process: its id in the cluster, where it listens, and its process id.

    A node that is down has the process id 0.
    """

    id: Annotated[int, "id"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    pid: Annotated[int, "pid"]
