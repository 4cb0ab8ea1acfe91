"""A small language for scenarios of a quorum, with transcripts to compare.

A script is a text file of blocks: a command, a line `----`, and what it prints, up to an empty
line. Time stands still unless a command moves it; messages lie in a queue until `deliver`.

    set NAME VALUE              a setting of `RaftConfig`, for nodes that start from now on
    add-nodes N                 N voters, 1 to N, with empty logs
    add-observers N             N more that do not vote
    tick NODE|all MS            move a node's clock; due timers fire on the way
    campaign NODE               move a node's clock until it asks for an election
    hurry NODE                  let a node ask for an election now
    unreachable PEER to NODE    a connection of the second to the first was refused
    elect NODE                  let a node campaign and win, and print only that
    deliver [N]                 deliver queued messages and those that follow, at most N
    lose                        lose everything that is queued
    cut A->B | cut A            lose what A sends to B | everything from and to A
    heal                        undo all cuts
    propose NODE TEXT…          one entry with a record for each word
    snapshot NODE               keep a snapshot of what is committed
    resign NODE
    crash NODE                  what is not on its disk is lost
    restart NODE [empty-disk | unknown-disk]
                                start it again, with its disk or with a new one, which its own
                                configuration names, or does not
    add-voter NODE by NODE      let the second give a vote to the first
    remove-voter NODE by NODE
    print                       role, epoch, leader, high watermark of each node
    print-log                   the entries of each node
    # anything                  a remark
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from shoal.lite.raft.actions import Action, Committed, LoadSnapshot, SendToPeer, StorageAction
from shoal.lite.raft.config import RaftConfig
from shoal.lite.raft.messages import RaftMessage, VoteRequest
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.node import RaftNode
from shoal.lite.raft.storage.codec import decode_snapshot
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.simulation.disk import KillAfterWrites, QuorumDisk
from shoal.model.errors import ShoalError
from support.raft.words import describe_action, describe_message, entry_text

CONFIG = RaftConfig(
    election_timeout_ms=1000,
    fetch_timeout_ms=2000,
    fetch_max_wait_ms=500,
    request_timeout_ms=1000,
    retry_backoff_ms=100,
    snapshot_chunk_bytes=200,
)
_DELIVERY_LIMIT = 500


class Echo(QuorumDisk):
    """A disk that tells what is written to it."""

    def __init__(self, voters: Voters, tell: Callable[[Action], None]) -> None:
        super().__init__(voters, KillAfterWrites())
        self._tell = tell

    def perform(self, action: StorageAction) -> None:
        self._tell(action)
        super().perform(action)


class Script:
    """The state of one scenario."""

    def __init__(self) -> None:
        self.voters = Voters(())
        self.nodes: dict[int, RaftNode] = {}
        self.disks: dict[int, Echo] = {}
        self.keys: dict[int, ReplicaKey] = {}
        self.clocks: dict[int, int] = {}
        self.state: dict[int, list[str]] = {}
        self.queue: deque[tuple[int, int, RaftMessage]] = deque()
        self.cuts: set[tuple[int, int]] = set()
        self.output: list[str] = []
        self.config = CONFIG

    def run(self, command: str) -> str:
        """Execute one command; returns what it prints."""
        self.output = []
        name, *words = command.split()
        getattr(self, f"do_{name.replace('-', '_')}")(*words)
        return "\n".join(self.output) or "ok"

    # Members

    def do_set(self, name: str, value: str) -> None:
        changes: dict[str, Any] = {name.replace("-", "_"): int(value)}
        self.config = replace(self.config, **changes)

    def do_add_nodes(self, count: str) -> None:
        ids = range(1, int(count) + 1)
        self.voters = Voters(Voter(node_id, _directory(node_id, 0)) for node_id in ids)
        for node_id in ids:
            self._add(node_id, 0)

    def do_add_observers(self, count: str) -> None:
        first = len(self.keys) + 1
        for node_id in range(first, first + int(count)):
            self._add(node_id, 0)

    def _add(self, node_id: int, generation: int) -> None:
        self.keys[node_id] = ReplicaKey(node_id, _directory(node_id, generation))
        self.clocks.setdefault(node_id, 0)
        self.disks[node_id] = Echo(self.voters, lambda action: self._tell(node_id, action))
        self._start(node_id)

    def _start(self, node_id: int) -> None:
        disk = self.disks[node_id]
        stored = disk.load_state()
        records = () if stored.snapshot is None else decode_snapshot(stored.snapshot.data).records
        self.state[node_id] = [record.decode() for record in records]
        self.nodes[node_id] = RaftNode(
            self.keys[node_id],
            stored,
            now_ms=self.clocks[node_id],
            random=Random(node_id),
            config=self.config,
        )
        self._drive(node_id)

    def do_crash(self, node_id: str) -> None:
        del self.nodes[int(node_id)]

    def do_restart(self, node_id: str, how: str = "") -> None:
        number = int(node_id)
        assert number not in self.nodes
        if how == "empty-disk":
            fresh = Voter(number, _directory(number, 1))
            self.voters = self.voters.without(number).with_voter(fresh)
        if how:
            self._add(number, 1)
        else:
            self._start(number)

    # Time

    def do_tick(self, who: str, elapsed_ms: str) -> None:
        ids = sorted(self.nodes) if who == "all" else [int(who)]
        for node_id in ids:
            self._move_clock(node_id, self.clocks[node_id] + int(elapsed_ms))

    def do_hurry(self, node_id: str) -> None:
        number = int(node_id)
        self.nodes[number].campaign(self.clocks[number])
        self._drive(number)

    def do_unreachable(self, peer: str, _to: str, node_id: str) -> None:
        number = int(node_id)
        self.nodes[number].on_unreachable(self.clocks[number], int(peer))
        self._drive(number)

    def do_campaign(self, node_id: str) -> None:
        number = int(node_id)
        asked = len(self._votes_asked(number))
        for _ in range(20):
            deadline_ms = self.nodes[number].next_deadline_ms()
            assert deadline_ms is not None
            self._move_clock(number, max(deadline_ms, self.clocks[number]))
            if len(self._votes_asked(number)) > asked:
                return
        raise AssertionError(f"node {number} does not ask for an election")

    def _votes_asked(self, node_id: int) -> list[RaftMessage]:
        return [
            message
            for sender, _, message in self.queue
            if sender == node_id and isinstance(message, VoteRequest)
        ]

    def do_elect(self, node_id: str) -> None:
        self.do_campaign(node_id)
        self.do_deliver()
        node = self.nodes[int(node_id)]
        assert node.is_leader
        self.output = [f"  {node.id}: leads epoch {node.epoch}"]

    def _move_clock(self, node_id: int, until_ms: int) -> None:
        node = self.nodes[node_id]
        while True:
            deadline_ms = node.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.clocks[node_id] = max(deadline_ms, self.clocks[node_id])
            node.tick(self.clocks[node_id])
            self._drive(node_id)
        self.clocks[node_id] = until_ms

    # Network

    def do_deliver(self, limit: str = str(_DELIVERY_LIMIT)) -> None:
        for _ in range(int(limit)):
            if not self.queue:
                return
            sender, to, message = self.queue.popleft()
            node = self.nodes.get(to)
            if node is None or (sender, to) in self.cuts:
                self.output.append(f"{sender}->{to} {describe_message(message)} (lost)")
                continue
            self.output.append(f"{sender}->{to} {describe_message(message)}")
            node.receive(self.clocks[to], sender, message)
            self._drive(to)
        assert int(limit) < _DELIVERY_LIMIT, "messages without end"

    def do_lose(self) -> None:
        for sender, to, message in self.queue:
            self.output.append(f"{sender}->{to} {describe_message(message)} (lost)")
        self.queue.clear()

    def do_cut(self, which: str) -> None:
        if "->" in which:
            sender, to = map(int, which.split("->"))
            self.cuts.add((sender, to))
            return
        for other in self.keys:
            self.cuts |= {(int(which), other), (other, int(which))}

    def do_heal(self) -> None:
        self.cuts.clear()

    # Wishes

    def do_propose(self, node_id: str, *words: str) -> None:
        self._wish(int(node_id), lambda n, now: n.propose(now, [word.encode() for word in words]))

    def do_add_voter(self, node_id: str, _by: str, leader_id: str) -> None:
        key = self.keys[int(node_id)]
        voter = Voter(key.id, key.directory)
        self._wish(int(leader_id), lambda node, now: node.add_voter(now, voter))

    def do_remove_voter(self, node_id: str, _by: str, leader_id: str) -> None:
        voter = self.nodes[int(leader_id)].voters.get(int(node_id))
        assert voter is not None
        self._wish(int(leader_id), lambda node, now: node.remove_voter(now, voter.key))

    def _wish(self, node_id: int, wish: Callable[[RaftNode, int], int]) -> None:
        try:
            wish(self.nodes[node_id], self.clocks[node_id])
        except ShoalError as error:
            self.output.append(f"  {node_id}: refused: {error}")
        self._drive(node_id)

    def do_snapshot(self, node_id: str) -> None:
        node = self.nodes[int(node_id)]
        records = [record.encode() for record in self.state[node.id]]
        node.save_snapshot(node.high_watermark, records)
        self._drive(node.id)

    def do_resign(self, node_id: str) -> None:
        self.nodes[int(node_id)].resign(self.clocks[int(node_id)])
        self._drive(int(node_id))

    # Output

    def do_print(self) -> None:
        for node_id in self.keys:
            node = self.nodes.get(node_id)
            if node is None:
                self.output.append(f"{node_id}: down")
                continue
            kind = "" if node.is_voter else " (observer)"
            self.output.append(
                f"{node_id}: {node.role.value}{kind} epoch={node.epoch} leader={node.leader_id} "
                f"end={node.log.end_offset} committed={node.high_watermark} "
                f"state={','.join(self.state[node_id]) or '-'}"
            )

    def do_print_log(self) -> None:
        for node_id in self.keys:
            stored: StoredState = self.disks[node_id].load_state()
            start = "" if stored.snapshot is None else f"snapshot{tuple(stored.snapshot.id)} "
            shown = " ".join(
                f"{base}:{entry_text(entry)}" for base, entry in self.disks[node_id].entries.items()
            )
            down = "" if node_id in self.nodes else " (down)"
            self.output.append(f"{node_id}{down}: {start}{shown}".rstrip())

    def _drive(self, node_id: int) -> None:
        def perform(action: Action) -> None:
            if isinstance(action, SendToPeer):
                self.queue.append((node_id, action.to, action.message))
            elif isinstance(action, LoadSnapshot):
                self.state[node_id] = [record.decode() for record in action.records]
            else:
                self._tell(node_id, action)
            if isinstance(action, Committed):
                data = [e for e in action.entries if e.kind is EntryKind.DATA]
                self.state[node_id] += [r.decode() for entry in data for r in entry.records]

        perform_actions(self.nodes[node_id], self.disks[node_id], perform, self.clocks[node_id])

    def _tell(self, node_id: int, action: Action) -> None:
        self.output.append(f"  {node_id}: {describe_action(action)}")


def _directory(node_id: int, generation: int) -> UUID:
    return UUID(int=node_id * 16 + generation)


def play(text: str) -> str:
    """Run a script; returns it with what its commands print."""
    script = Script()
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith("#"):
            blocks.append(block)
            continue
        command = block.splitlines()[0]
        blocks.append(f"{command}\n----\n{script.run(command)}")
    return "\n\n".join(blocks) + "\n"
