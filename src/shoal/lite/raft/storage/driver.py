"""Performs the actions of a node in their order: first what must survive, then what follows.

Thin on purpose: processes and simulations run the same loop, with other parts around it.
"""

from collections.abc import Callable
from typing import Protocol

from shoal.lite.raft.actions import STORAGE_ACTIONS, Action, LoadSnapshot, StorageAction
from shoal.lite.raft.node import RaftNode


class Storage(Protocol):
    """Where a member keeps what must survive."""

    @property
    def end_offset(self) -> int:
        """Where the log ends, as far as it would survive a power loss."""

    def perform(self, action: StorageAction) -> None:
        """Do it, and return when it would survive."""


def drive(node: RaftNode, storage: Storage, perform: Callable[[Action], None], now_ms: int) -> None:
    """Do everything that the node wants done.

    `perform` gets the actions for the network and the state machine, and `LoadSnapshot`, once
    it is stored. It must not give the node any input; that has to wait for the next turn.
    """
    while actions := node.take_actions():
        for action in actions:
            if isinstance(action, STORAGE_ACTIONS):
                storage.perform(action)
            if isinstance(action, LoadSnapshot) or not isinstance(action, STORAGE_ACTIONS):
                perform(action)
        node.persisted(now_ms, storage.end_offset)
