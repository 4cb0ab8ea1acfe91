"""One member of the quorum: messages and time in, actions out.

    unattached    knows no leader; waits for one, or for its time to ask for an election
    prospective   asks whether it would be elected (pre-vote); its epoch stays as it is
    candidate     a majority would elect it: it has begun a new epoch and asks for votes
    leader        a majority has voted for it
    follower      fetches from the leader

    follower ──no answer──► prospective ──majority──► candidate ──majority──► leader
       ▲                        ▲   │                     │                     │
       └────leader is known─────┼───┘                     │     resigns, or quorum lost
    unattached ────time is up───┴──────time is up─────────┘                     │
       ▲────────────────────────────────────────────────────────────────────────┘

    any role ──higher epoch──► unattached, or follower if its leader is named

Rules of this file:
- Pure: no clock, no disk, no network, no chance but `random`. Every input takes the time, and
  leaves what is to be done in a list, which `take_actions` hands out.
- A vote is given once per epoch, to a log that is not behind ours, and remembered before it is
  told. A pre-vote promises nothing; it is refused by whoever hears from a leader, so that one
  who was cut off cannot end a leadership that works when it returns.
- A member whose leader cannot be reached need not wait until it was silent for long: it asks for
  an election at once, once. If the others still hear the leader, they refuse.
- Who does not vote is an observer. It follows like the others, and never asks for an election.
- A request from someone with the id of a voter and another disk is answered with an error, and
  changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from shoal.lite.raft.actions import Action, Refused, ResignedLeader
from shoal.lite.raft.config import DEFAULT_CONFIG, RaftConfig
from shoal.lite.raft.election import Ballot
from shoal.lite.raft.errors import NotLeader
from shoal.lite.raft.follower import Follower, fetch_request
from shoal.lite.raft.leader import Leader, Progress
from shoal.lite.raft.log import RaftLog
from shoal.lite.raft.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochResponse,
    EndQuorumEpoch,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Message,
    RaftCode,
    Response,
    VoteRequest,
    VoteResponse,
)
from shoal.lite.raft.model import QuorumState, ReplicaKey, StoredState, Voter, Voters
from shoal.lite.raft.replica import Replica


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"


class RaftNode:
    """A member, from one start of its process to the next."""

    def __init__(
        self,
        key: ReplicaKey,
        stored: StoredState,
        *,
        now_ms: int,
        random: Random,
        config: RaftConfig = DEFAULT_CONFIG,
    ) -> None:
        self._replica = Replica(key, stored, config, random)
        self._replica.now_ms = now_ms
        self.role = Role.UNATTACHED
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._ballot: Ballot | None = None
        # When to do something without a leader: ask for an election, or look for one who leads.
        self._deadline_ms = now_ms
        # Whether the others refused an election: then the leader is well, and only we cannot reach
        # it. Until we hear it again its silence must be long to count.
        self._was_refused = False
        # Whom to ask for a leader: one voter after the other, beginning with any of them.
        self._next_asked = random.randrange(1000)
        self._handlers: dict[type[Message], Callable[[int, Any], None]] = {
            VoteRequest: self._on_vote_request,
            VoteResponse: self._on_vote_response,
            BeginQuorumEpoch: self._on_begin,
            BeginQuorumEpochResponse: self._on_epoch_response,
            EndQuorumEpoch: self._on_end,
            EndQuorumEpochResponse: self._on_epoch_response,
            FetchRequest: self._on_fetch,
            FetchResponse: self._on_fetch_response,
            FetchSnapshotRequest: self._on_fetch_snapshot,
            FetchSnapshotResponse: self._on_snapshot_response,
        }
        self._start()

    def _start(self) -> None:
        replica = self._replica
        leader_id = replica.quorum.leader_id
        if replica.is_voter and len(replica.voters) == 1:
            self._become_candidate()
        elif leader_id is not None and leader_id != replica.key.id:
            self._become_follower(replica.epoch, leader_id)
        else:
            # Whoever led when its process ended does not lead now: its log may have lost its tail.
            self._become_unattached(replica.epoch)

    # What can be seen

    @property
    def id(self) -> int:
        return self._replica.key.id

    @property
    def epoch(self) -> int:
        return self._replica.epoch

    @property
    def leader_id(self) -> int | None:
        """Who leads this epoch, as far as known."""
        return self._replica.quorum.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and may be proposed to."""
        return self._leader is not None and self._leader.is_established

    @property
    def is_voter(self) -> bool:
        return self._replica.is_voter

    @property
    def voters(self) -> Voters:
        return self._replica.voters

    @property
    def log(self) -> RaftLog:
        """To be read only."""
        return self._replica.log

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed."""
        return self._replica.high_watermark

    @property
    def quorum_state(self) -> QuorumState:
        return self._replica.quorum

    @property
    def progress(self) -> Mapping[int, Progress]:
        """What a leader knows about the others; empty for everybody else."""
        return {} if self._leader is None else self._leader.progress

    # Input

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order. See `actions` for the rules."""
        return self._replica.take_actions()

    def next_deadline_ms(self) -> int | None:
        """When `tick` will have something to do; None if only a message can bring that about."""
        if self._leader is not None:
            return self._leader.next_deadline_ms()
        if self._follower is not None:
            return self._follower.next_deadline_ms()
        return self._deadline_ms

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        self._replica.now_ms = now_ms
        if self._leader is not None:
            self._leader.tick()
            deadline_ms = self._leader.quorum_deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._resign(self._leader)
        elif self._follower is not None:
            if self._follower.deadline_ms <= now_ms:
                self._on_leader_silent()
            else:
                self._follower.fetch_if_due()
        elif self._deadline_ms <= now_ms:
            self._on_time_up()

    def receive(self, now_ms: int, sender: int, message: Message) -> None:
        """A message of another member has arrived."""
        self._replica.now_ms = now_ms
        self._handlers[type(message)](sender, message)

    def campaign(self, now_ms: int) -> None:
        """Ask for an election now instead of later, if nobody is known to lead."""
        self._replica.now_ms = now_ms
        if self._replica.is_voter and self.role is Role.UNATTACHED:
            self._become_prospective()

    def unreachable(self, now_ms: int, peer: int) -> None:
        """A connection to a member was refused, or broke: most likely its process has ended."""
        replica = self._replica
        replica.now_ms = now_ms
        follower = self._follower
        if follower is not None and follower.leader_id == peer:
            if self._was_refused:
                follower.back_off()
            else:
                self._on_leader_silent()
        elif not replica.is_voter:
            self._ask_soon()

    def persisted(self, now_ms: int, end_offset: int) -> None:
        """Everything below `end_offset` of the log is on the disk."""
        replica = self._replica
        replica.now_ms = now_ms
        end_offset = min(end_offset, replica.log.end_offset)
        if end_offset <= replica.durable_end:
            return
        replica.durable_end = end_offset
        if self._leader is not None:
            self._leader.advance()
        elif self._follower is not None:
            self._follower.fetch_if_due()

    def propose(self, now_ms: int, records: Sequence[bytes]) -> int:
        """Append records that belong together; committed once the high watermark is at the
        offset returned. Raises `NotLeader`."""
        self._replica.now_ms = now_ms
        return self._established_leader().propose(tuple(records))

    def add_voter(self, now_ms: int, voter: Voter) -> int:
        """Give an observer a vote; like `propose`. Raises `VoterChangeRefused` too."""
        self._replica.now_ms = now_ms
        return self._established_leader().add_voter(voter)

    def remove_voter(self, now_ms: int, key: ReplicaKey) -> int:
        """Take a voter's vote; like `propose`. Raises `VoterChangeRefused` too."""
        self._replica.now_ms = now_ms
        return self._established_leader().remove_voter(key)

    def save_snapshot(self, end_offset: int, records: Sequence[bytes]) -> None:
        """`records` make the state after the first `end_offset` records, which are committed."""
        self._replica.save_snapshot(end_offset, tuple(records))

    def resign(self, now_ms: int) -> None:
        """Stop leading, if we do, and let the others elect another at once."""
        self._replica.now_ms = now_ms
        if self._leader is not None:
            self._resign(self._leader)

    def _established_leader(self) -> Leader:
        if self._leader is None or not self._leader.is_established:
            raise NotLeader(None if self._leader is not None else self.leader_id)
        return self._leader

    # Roles

    def _leave_role(self) -> None:
        leader = self._leader
        self._leader = None
        self._follower = None
        self._ballot = None
        if leader is None:
            return
        if leader.is_established:
            self._replica.emit(ResignedLeader(leader.epoch))
        for sender, request in leader.close():
            self._refuse_fetch(sender, request, RaftCode.NOT_LEADER_OR_FOLLOWER)

    def _become_unattached(self, epoch: int) -> None:
        replica = self._replica
        if epoch > replica.epoch:
            replica.remember(QuorumState(epoch))
        self._forget_leader()
        self._leave_role()
        self.role = Role.UNATTACHED
        # An observer looks for a leader at once.
        self._deadline_ms = replica.now_ms
        if replica.is_voter:
            self._deadline_ms += self._election_timeout_ms()

    def _forget_leader(self) -> None:
        # On the disk it may stay: it did lead this epoch, and asking it once more does no harm.
        self._replica.quorum = replace(self._replica.quorum, leader_id=None)

    def _become_follower(self, epoch: int, leader_id: int) -> None:
        replica = self._replica
        if epoch > replica.epoch:
            replica.remember(QuorumState(epoch, leader_id=leader_id))
        else:
            replica.remember(replace(replica.quorum, leader_id=leader_id))
        self._leave_role()
        self.role = Role.FOLLOWER
        self._was_refused = False
        self._follower = Follower(replica, leader_id)

    def _become_prospective(self) -> None:
        self._leave_role()
        self.role = Role.PROSPECTIVE
        self._ask_for_votes(pre_vote=True)

    def _become_candidate(self) -> None:
        self._leave_role()
        self.role = Role.CANDIDATE
        replica = self._replica
        replica.remember(QuorumState(replica.epoch + 1, voted_for=replica.key))
        self._ask_for_votes(pre_vote=False)

    def _become_leader(self, granting: frozenset[int]) -> None:
        self._leave_role()
        self.role = Role.LEADER
        replica = self._replica
        replica.remember(replace(replica.quorum, leader_id=replica.key.id))
        self._leader = Leader(replica, granting)

    def _resign(self, leader: Leader) -> None:
        replica = self._replica
        message = EndQuorumEpoch(replica.epoch, replica.key.id, leader.successors())
        for voter_id in replica.other_voters():
            replica.send(voter_id, message)
        self._become_unattached(replica.epoch)

    # Time without a leader

    def _election_timeout_ms(self) -> int:
        least_ms = self._replica.config.election_timeout_ms
        return least_ms + self._replica.random.randrange(least_ms)

    def _on_leader_silent(self) -> None:
        if self._replica.is_voter:
            self._become_prospective()
        else:
            self._become_unattached(self.epoch)

    def _on_time_up(self) -> None:
        if not self._replica.is_voter:
            self._look_for_leader()
        elif self.role is Role.PROSPECTIVE and self.leader_id is not None:
            self._follow_after_refusal(self.leader_id)
        else:
            self._become_prospective()

    def _follow_after_refusal(self, leader_id: int) -> None:
        """Nobody wants an election: the leader is alive, and only we do not hear it."""
        self._become_follower(self.epoch, leader_id)
        self._was_refused = True

    def _ask_soon(self) -> None:
        """Ask the next voter who leads: the last one cannot tell."""
        soon_ms = self._replica.now_ms + self._replica.config.retry_backoff_ms
        self._deadline_ms = min(self._deadline_ms, soon_ms)

    def _look_for_leader(self) -> None:
        replica = self._replica
        # The leader may hold the question that long; anybody else answers at once, or is dead.
        self._deadline_ms = replica.now_ms + replica.config.fetch_max_wait_ms
        others = replica.other_voters()
        if others:
            replica.send(others[self._next_asked % len(others)], fetch_request(replica))
            self._next_asked += 1

    # Elections

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        replica = self._replica
        self._deadline_ms = replica.now_ms + self._election_timeout_ms()
        self._ballot = Ballot(replica.voters, pre_vote=pre_vote)
        for voter in replica.voters:
            if voter.key == replica.key:
                continue
            request = VoteRequest(
                epoch=replica.epoch,
                candidate_id=replica.key.id,
                candidate_directory=replica.key.directory,
                voter_directory=voter.directory,
                last_epoch=replica.log.last_epoch,
                last_offset=replica.log.end_offset,
                pre_vote=pre_vote,
            )
            replica.send(voter.id, request)
        self._count_vote(replica.key.id, granted=True)

    def _count_vote(self, voter_id: int, *, granted: bool) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        ballot.count(voter_id, granted=granted)
        if ballot.is_won and ballot.pre_vote:
            self._become_candidate()
        elif ballot.is_won:
            self._become_leader(ballot.granting)
        elif ballot.is_lost and ballot.pre_vote and self.leader_id is not None:
            self._follow_after_refusal(self.leader_id)

    def _on_vote_request(self, sender: int, request: VoteRequest) -> None:
        replica = self._replica
        candidate = ReplicaKey(request.candidate_id, request.candidate_directory)
        error = RaftCode.NONE
        granted = False
        if request.voter_directory != replica.key.directory:
            error = RaftCode.INVALID_VOTER_KEY
        elif replica.voters.contradict(candidate):
            error = RaftCode.VOTER_NOT_FOUND
        elif request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        else:
            if request.epoch > replica.epoch:
                self._become_unattached(request.epoch)
            granted = self._grants(request, candidate)
            if granted and not request.pre_vote:
                self._vote_for(candidate)
        replica.send(
            sender,
            VoteResponse(replica.epoch, self.leader_id, granted, request.pre_vote, error),
        )

    def _grants(self, request: VoteRequest, candidate: ReplicaKey) -> bool:
        replica = self._replica
        ours = (replica.log.last_epoch, replica.log.end_offset)
        if (request.last_epoch, request.last_offset) < ours:
            return False
        if request.pre_vote:
            follower = self._follower
            return self._leader is None and (follower is None or not follower.has_fetched)
        if replica.quorum.voted_for is not None:
            return replica.quorum.voted_for == candidate
        return self.leader_id is None

    def _vote_for(self, candidate: ReplicaKey) -> None:
        replica = self._replica
        replica.remember(replace(replica.quorum, voted_for=candidate))
        # Give the one whom we elect the time to win.
        self._become_unattached(replica.epoch)

    def _on_vote_response(self, sender: int, response: VoteResponse) -> None:
        if self._learned_of_refusal(sender, response) or self._learned_of_epoch(response):
            return
        if (ballot := self._ballot) is None:
            return
        if (response.epoch, response.pre_vote) == (self.epoch, ballot.pre_vote):
            self._count_vote(sender, granted=response.granted)

    # Who leads

    def _learned_of_refusal(self, sender: int, response: Response) -> bool:
        if response.error is RaftCode.VOTER_NOT_FOUND:
            self._replica.emit(Refused(sender, response.error))
        return response.error in {RaftCode.VOTER_NOT_FOUND, RaftCode.INVALID_VOTER_KEY}

    def _learned_of_epoch(self, response: Response) -> bool:
        """Whether a response told of a newer epoch, or of the leader that we do not know."""
        epoch, leader_id = response.epoch, response.leader_id
        if leader_id == self.id:
            # An answer to somebody that we were before our last start.
            leader_id = None
        if epoch < self.epoch or (epoch == self.epoch and self._knows_leader(leader_id)):
            return False
        if leader_id is None:
            self._become_unattached(epoch)
        else:
            self._become_follower(epoch, leader_id)
        return True

    def _knows_leader(self, leader_id: int | None) -> bool:
        """Whether the name of this epoch's leader is no news."""
        if leader_id is None or not self._is_leaderless():
            return True
        # A prospective one may know the leader, and not hear it.
        return leader_id == self.leader_id

    def _is_leaderless(self) -> bool:
        return self._leader is None and self._follower is None

    def _on_begin(self, sender: int, request: BeginQuorumEpoch) -> None:
        replica = self._replica
        error = RaftCode.NONE
        is_meant = request.voter_directory == replica.key.directory
        if not is_meant or request.leader_id == replica.key.id:
            error = RaftCode.INVALID_VOTER_KEY
        elif request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        elif request.epoch > replica.epoch or self._is_leaderless():
            self._become_follower(request.epoch, request.leader_id)
        replica.send(sender, BeginQuorumEpochResponse(replica.epoch, self.leader_id, error))

    def _on_end(self, sender: int, request: EndQuorumEpoch) -> None:
        replica = self._replica
        error = RaftCode.NONE
        if request.epoch < replica.epoch:
            error = RaftCode.FENCED_LEADER_EPOCH
        elif request.epoch > replica.epoch or self.role in {Role.FOLLOWER, Role.PROSPECTIVE}:
            self._become_unattached(request.epoch)
            if replica.is_voter and request.preferred[:1] == (replica.key.id,):
                self._become_prospective()
        replica.send(sender, EndQuorumEpochResponse(replica.epoch, self.leader_id, error))

    def _on_epoch_response(
        self, sender: int, response: BeginQuorumEpochResponse | EndQuorumEpochResponse
    ) -> None:
        if not self._learned_of_refusal(sender, response):
            self._learned_of_epoch(response)

    # Fetching

    def _on_fetch(self, sender: int, request: FetchRequest) -> None:
        error = self._fetch_error(request)
        if self._leader is not None and error is RaftCode.NONE:
            self._leader.fetch(sender, request)
        else:
            self._refuse_fetch(sender, request, error)

    def _on_fetch_snapshot(self, sender: int, request: FetchSnapshotRequest) -> None:
        error = self._fetch_error(request)
        if self._leader is not None and error is RaftCode.NONE:
            self._leader.fetch_snapshot(sender, request)
            return
        response = FetchSnapshotResponse(
            self.epoch, self.leader_id, request.snapshot, request.position, error=error
        )
        self._replica.send(sender, response)

    def _fetch_error(self, request: FetchRequest | FetchSnapshotRequest) -> RaftCode:
        key = ReplicaKey(request.replica_id, request.replica_directory)
        if self._replica.voters.contradict(key):
            return RaftCode.VOTER_NOT_FOUND
        if request.epoch < self.epoch:
            return RaftCode.FENCED_LEADER_EPOCH
        if request.epoch > self.epoch:
            return RaftCode.UNKNOWN_LEADER_EPOCH
        return RaftCode.NONE if self._leader is not None else RaftCode.NOT_LEADER_OR_FOLLOWER

    def _refuse_fetch(self, sender: int, request: FetchRequest, error: RaftCode) -> None:
        response = FetchResponse(
            epoch=self.epoch,
            leader_id=self.leader_id,
            offset=request.offset,
            last_fetched_epoch=request.last_fetched_epoch,
            error=error,
        )
        self._replica.send(sender, response)

    def _on_fetch_response(self, sender: int, response: FetchResponse) -> None:
        if self._learned_of_refusal(sender, response) or self._learned_of_epoch(response):
            return
        follower = self._follower_of(sender, response)
        if follower is not None:
            follower.on_fetch_response(response)
            self._was_refused = self._was_refused and not follower.has_fetched
        elif not self._replica.is_voter:
            self._ask_soon()

    def _on_snapshot_response(self, sender: int, response: FetchSnapshotResponse) -> None:
        if self._learned_of_refusal(sender, response) or self._learned_of_epoch(response):
            return
        follower = self._follower_of(sender, response)
        if follower is not None:
            follower.on_snapshot_response(response)

    def _follower_of(
        self, sender: int, response: FetchResponse | FetchSnapshotResponse
    ) -> Follower | None:
        """Our following, if the response is the leader's and of this epoch."""
        follower = self._follower
        if follower is None or follower.leader_id != sender or response.epoch != self.epoch:
            return None
        if response.error is RaftCode.NOT_LEADER_OR_FOLLOWER:
            # It has resigned, or was started again: nobody leads this epoch any more.
            self._become_unattached(self.epoch)
            return None
        return follower
