"""What a run may do to clusters that are somebody else's (pure).

Rules:
- It writes only to topics that it makes, or to the one canary topic that the user named.
- It does no faults there, unless the user allowed them; which ones could be done at all is
  another matter (`shoal.experiment.faults.fault_injection.check`).
- Caps on rate and bytes hold whatever the file says: the lower of both counts.
"""

from dataclasses import dataclass, field, replace

from shoal.experiment.spec import Caps, ExperimentSpec
from shoal.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Leave:
    """What the user allowed on the command line, and where it must end."""

    canary_topic: str | None = None
    allow_faults: bool = False
    caps: Caps = field(default_factory=Caps)


def guarded(spec: ExperimentSpec, leave: Leave) -> ExperimentSpec:
    """The experiment within what was allowed; refused if it wants more."""
    foreign = [role for role, one in spec.clusters.items() if one.engine == "external"]
    if foreign and spec.faults and not leave.allow_faults:
        raise UsageError(
            f"the {foreign[0]} is somebody else's, and the experiment has faults",
            remedy="say --allow-faults if that is meant, or leave [[fault]] out",
        )
    return _with_canary(replace(spec, caps=_lower(spec.caps, leave.caps)), leave, foreign)


def _with_canary(spec: ExperimentSpec, leave: Leave, foreign: list[str]) -> ExperimentSpec:
    if leave.canary_topic is None:
        return spec
    if len(foreign) < len(spec.clusters):
        raise UsageError(
            "a canary topic is there before the run, so every cluster must be external",
            remedy="leave out --canary-topic: the run makes its own topics",
        )
    if spec.topics.count > 1:
        raise UsageError("there is one canary topic, and the experiment wants several")
    return replace(spec, topics=replace(spec.topics, name=leave.canary_topic, existing=True))


def _lower(of_file: Caps, of_user: Caps) -> Caps:
    rates = [one.max_rate_per_s for one in (of_file, of_user) if one.max_rate_per_s]
    sizes = [one.max_bytes for one in (of_file, of_user) if one.max_bytes]
    return Caps(min(rates, default=0.0), min(sizes, default=0))
