"""How many replicas must have a record before it is acknowledged, by name.

    strict      all of them: what is acknowledged survives the loss of all disks but one; writes
                stop when one broker is down
    default     two, with three replicas: it survives the loss of one disk, and writes
                continue when one broker is down
    available   one: writes continue with the last in-sync broker; a lost disk may have had the
                only copy

A killed process loses nothing in any profile. A topic never needs more replicas than it has.
"""

from shoal.lite.base.settings import INT_MAX
from shoal.model.errors import UsageError

_MIN_INSYNC = {"strict": INT_MAX, "default": 2, "available": 1}
_REPLICATION_FACTOR = 3
PROFILES = tuple(_MIN_INSYNC)


def check_profile(profile: str | None) -> None:
    """Raise `UsageError` for an unknown profile; None stands for the default."""
    if profile is not None and profile not in _MIN_INSYNC:
        known = ", ".join(PROFILES)
        raise UsageError(f"unknown profile {profile!r}", remedy=f"choose one of {known}")


def profile_properties(profile: str | None, brokers: int) -> dict[str, str]:
    """The properties of brokers and controllers for a profile; a single broker needs none."""
    if profile is None:
        if brokers == 1:
            return {}
        profile = "default"
    check_profile(profile)
    return {
        "default.replication.factor": str(min(_REPLICATION_FACTOR, brokers)),
        "min.insync.replicas": str(_MIN_INSYNC[profile]),
    }
