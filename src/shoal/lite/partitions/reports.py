"""What a broker sends to the controller about its replicas: in-sync sets, failed logs, log ends.

Rules of this file:
- Nothing here knows an event loop: `submit` sends a request, and later gives the reply; `gather`
  calls a function a moment later. A broker does that with tasks, a simulation with messages.
- A leader gets an answer to every proposal, because it proposes again only after an answer.
- Proposals wait a moment for others, and go in one request: when a broker fails, thousands of
  partitions lose a member at once.
- A failed log is reported once, unless the report fails: then the next check that finds the failed
  log reports it again.
- A log end is reported once. If that fails, the election waits for its time-out.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AlterIsr, IsrAnswer

_logger = logging.getLogger(__name__)

Submit = Callable[[requests.ControllerRequest[Any], Callable[[Reply], object]], None]
Gather = Callable[[Callable[[], None]], object]
# A controller handles a request in one piece, and a broker its reply: neither may hold up its loop.
MOST_CHANGES: Final = 100


class ReportingBroker(Protocol):
    """A broker, as the controller knows it."""

    @property
    def broker_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...


class _Proposed(NamedTuple):
    """A proposal of a leader, and the change that it asks for."""

    change: requests.InSyncChange
    partition: PartitionShell[Any]
    leader: LeaderPartition
    proposal: AlterIsr

    def answer(self, answer: IsrAnswer) -> None:
        self.partition.on_isr_answer(self.leader, self.proposal, answer)


class ControllerReports:
    """The reports of one broker."""

    def __init__(self, broker: ReportingBroker, submit: Submit, gather: Gather) -> None:
        """`submit` retries what may be lost, and always gives a reply in the end."""
        self._broker = broker
        self._submit = submit
        self._gather = gather
        self._proposals: list[_Proposed] = []
        # The failed logs that are reported, or are being reported.
        self._failed: set[tuple[UUID, int]] = set()

    def propose(
        self, partition: PartitionShell[Any], leader: LeaderPartition, proposal: AlterIsr
    ) -> None:
        """Send a leader's ISR proposal, with others of the same moment."""
        change = requests.InSyncChange(
            *partition.record.key, proposal.leader_epoch, proposal.partition_epoch, proposal.isr
        )
        self._proposals.append(_Proposed(change, partition, leader, proposal))
        if len(self._proposals) == 1:
            self._gather(self._send_proposals)

    def _send_proposals(self) -> None:
        proposals, self._proposals = self._proposals, []
        for first in range(0, len(proposals), MOST_CHANGES):
            self._send(proposals[first : first + MOST_CHANGES])

    def _send(self, proposals: list[_Proposed]) -> None:
        broker = self._broker
        changes = [proposed.change for proposed in proposals]
        request = requests.AlterPartitions(broker.broker_id, broker.broker_epoch, changes)

        waiting = deque(proposals)

        def on_reply(reply: Reply) -> None:
            # Called again with a refusal for the partitions that could not take their answers.
            answers, missing = _isr_answers(reply)
            failures: list[Exception] = []
            for _ in range(len(waiting)):
                proposed = waiting.popleft()
                key = proposed.change.topic_id, proposed.change.partition
                try:
                    proposed.answer(answers.get(key, missing))
                except Exception as error:  # noqa: BLE001 - it holds no other partition back
                    failures.append(error)
                    waiting.append(proposed)
            if failures:
                raise failures[0]

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


def _isr_answers(reply: Reply) -> tuple[dict[tuple[UUID, int], IsrAnswer], IsrAnswer]:
    """The controller's answers by partition, and the answer for those that have none."""
    if reply.refused is not None:
        return {}, IsrAnswer(reply.refused.code)
    answers = {(answer.topic_id, answer.index): _isr_answer(answer) for answer in reply.answer}
    return answers, IsrAnswer(Code.UNKNOWN_SERVER_ERROR)


def _isr_answer(answer: requests.InSyncAnswer) -> IsrAnswer:
    record = answer.partition
    if record is None:
        return IsrAnswer(answer.code)
    return IsrAnswer(answer.code, record.leader_epoch, record.partition_epoch, record.in_sync)
