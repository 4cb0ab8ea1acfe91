"""Counting votes."""

from shoal.lite.raft.model import Voters


class Ballot:
    """The votes or pre-votes that one candidate has received."""

    def __init__(self, voters: Voters, *, pre_vote: bool) -> None:
        self.pre_vote = pre_vote
        self._voters = voters
        self._answers: dict[int, bool] = {}

    def count(self, voter_id: int, *, granted: bool) -> None:
        """Record an answer. Each voter counts once, however often it answers; non-voters do not."""
        if self._voters.get(voter_id) is not None:
            self._answers[voter_id] = granted

    @property
    def granting(self) -> frozenset[int]:
        return frozenset(voter_id for voter_id, granted in self._answers.items() if granted)

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        refused = len(self._answers) - len(self.granting)
        return len(self._voters) - refused < self._voters.majority
