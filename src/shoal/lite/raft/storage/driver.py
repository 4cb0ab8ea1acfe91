"""Performs the actions of a Raft node in order: storage first, then what depends on it.

Thin on purpose: processes and simulations run the same loop with different storage and network.
"""

from collections.abc import Callable
from typing import Protocol

from shoal.lite.raft.actions import STORAGE_ACTIONS, Action, LoadSnapshot, StorageAction
from shoal.lite.raft.node import RaftNode


class Storage(Protocol):
    """Persistent storage of a member."""

    @property
    def end_offset(self) -> int:
        """The end of the part of the log that would survive a power loss."""

    def perform(self, action: StorageAction) -> None:
        """Perform the action, and return when it would survive a power loss."""


def perform_actions(
    node: RaftNode, storage: Storage, perform: Callable[[Action], None], now_ms: int
) -> None:
    """Perform all actions of the node.

    `perform` gets the actions for the network and the state machine, and `LoadSnapshot`, once
    it is stored. It must not give the node any input; input waits until this call returns.
    """
    while actions := node.take_actions():
        for action in actions:
            if isinstance(action, STORAGE_ACTIONS):
                storage.perform(action)
            if isinstance(action, LoadSnapshot) or not isinstance(action, STORAGE_ACTIONS):
                perform(action)
        node.on_persisted(now_ms, storage.end_offset)
