"""How a history ends before its time.

Violation         an invariant does not hold: what the simulation looks for
ProcessKilled     a process is killed in the middle of its work; the simulation continues

Neither is an `Exception`: the shells of production handle those, and would go on.
"""


class Violation(BaseException):
    """An invariant does not hold. `invariant` is its name in `invariants`."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return Violation, (self.invariant, self.detail)


class ProcessKilled(BaseException):
    """A process ends between two writes. Never leaves the world."""
