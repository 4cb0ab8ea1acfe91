"""A partition as its leader sees it: the log, and who waits for more of it.

With one replica, what is in the leader's log is in the logs of all in-sync replicas, so the
high watermark is the end of the log.
"""

from typing import Protocol

from shoal.lite.codes import Code, Refused
from shoal.lite.configs import TopicRules
from shoal.lite.controller.records import PartitionRecord
from shoal.lite.log.header import BatchHeader
from shoal.lite.log.partition_log import Appended, PartitionLog

NO_EPOCH = -1


class Waiter(Protocol):
    """Someone who waits for data of a partition. Both calls only take note, at once."""

    def on_appended(self, size_bytes: int) -> None: ...
    def on_gone(self) -> None: ...


class Partition:
    """One partition that this broker leads."""

    __slots__ = ("log", "name", "record", "rules", "waiters")

    def __init__(
        self, name: str, record: PartitionRecord, log: PartitionLog, rules: TopicRules
    ) -> None:
        """`name` is that of the topic."""
        self.name = name
        self.record = record
        self.log = log
        self.rules = rules
        self.waiters: set[Waiter] = set()

    @property
    def high_watermark(self) -> int:
        """Everything below it is on all in-sync replicas; consumers read up to here."""
        return self.log.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Everything below it belongs to no open transaction."""
        return self.log.end_offset

    def append(self, view: memoryview, header: BatchHeader) -> Appended:
        """Write a checked batch and tell those who wait."""
        appended = self.log.append(view, header, leader_epoch=self.record.leader_epoch)
        if not appended.is_duplicate:
            for waiter in self.waiters:
                waiter.on_appended(len(view))
        return appended

    def check_epoch(self, known_epoch: int) -> None:
        """Refuse a client whose idea of the leader is older or newer than ours (KIP-320)."""
        if known_epoch in (NO_EPOCH, self.record.leader_epoch):
            return
        if known_epoch < self.record.leader_epoch:
            raise Refused(Code.FENCED_LEADER_EPOCH, f"the leader epoch {known_epoch} is over")
        raise Refused(Code.UNKNOWN_LEADER_EPOCH, f"the leader epoch {known_epoch} is not known")

    def configure(self, rules: TopicRules) -> None:
        """Follow new settings of the topic."""
        self.rules = rules
        self.log.settings = rules.log

    def leave(self) -> None:
        """Tell those who wait that there is nothing to wait for."""
        for waiter in self.waiters:
            waiter.on_gone()
