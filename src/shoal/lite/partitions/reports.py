"""What a broker sends to the controller about its replicas: in-sync sets, failed logs, log ends.

Rules of this file:
- Nothing here knows an event loop: `submit` sends a request, and later gives the reply. A broker
  does that with tasks, a simulation with messages.
- A leader gets an answer to every proposal, because it proposes again only after an answer.
- A failed log is reported once, unless the report fails: then the next check that finds the failed
  log reports it again.
- A log end is reported once. If that fails, the election waits for its time-out.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AlterIsr, IsrAnswer

_logger = logging.getLogger(__name__)

Submit = Callable[[requests.ControllerRequest[Any], Callable[[Reply], object]], None]


class ReportingBroker(Protocol):
    """A broker, as the controller knows it."""

    @property
    def broker_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...


class ControllerReports:
    """The reports of one broker."""

    def __init__(self, broker: ReportingBroker, submit: Submit) -> None:
        """`submit` retries what may be lost, and always gives a reply in the end."""
        self._broker = broker
        self._submit = submit
        # The failed logs that are reported, or are being reported.
        self._failed: set[tuple[UUID, int]] = set()

    def propose(
        self, partition: PartitionShell[Any], leader: LeaderPartition, proposal: AlterIsr
    ) -> None:
        """Send a leader's ISR proposal."""
        change = requests.InSyncChange(
            *partition.record.key, proposal.leader_epoch, proposal.partition_epoch, proposal.isr
        )
        broker = self._broker
        request = requests.AlterPartitions(broker.broker_id, broker.broker_epoch, [change])

        def on_reply(reply: Reply) -> None:
            partition.on_isr_answer(leader, proposal, _isr_answer(reply))

        self._submit(request, on_reply)

    def report_failure(self, key: tuple[UUID, int]) -> None:
        """Report a failed log, so that another replica is elected."""
        if key in self._failed:
            return
        self._failed.add(key)

        def on_reply(reply: Reply) -> None:
            if _has_failed(reply):
                self._failed.discard(key)

        broker = self._broker
        request = requests.ReportFailures(broker.broker_id, broker.broker_epoch, [key])
        self._submit(request, on_reply)

    def report_log_end(self, partition: PartitionShell[Any]) -> None:
        """Report where the log of a replica ends, for an election among all replicas."""
        record, log, broker = partition.record, partition.log, self._broker
        end = requests.LogEnd(*record.key, record.leader_epoch, log.epochs.latest, log.end_offset)
        request = requests.ReportLogEnds(broker.broker_id, broker.broker_epoch, [end])
        self._submit(request, _has_failed)


def _has_failed(reply: Reply) -> bool:
    if reply.refused is not None:
        _logger.warning("a report to the controller failed: %s", reply.refused)
    return reply.refused is not None


def _isr_answer(reply: Reply) -> IsrAnswer:
    if reply.refused is not None:
        return IsrAnswer(reply.refused.code)
    [answer] = reply.answer
    record = answer.partition
    if record is None:
        return IsrAnswer(answer.code)
    return IsrAnswer(answer.code, record.leader_epoch, record.partition_epoch, record.in_sync)
