"""One process of a cluster under test, as every engine names it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A broker process: its id in the cluster, where it listens, and its process id.

    A node that is down has the process id 0.
    """

    id: int
    host: str
    port: int
    pid: int
