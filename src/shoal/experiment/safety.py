"""What a run may do to external clusters (pure).

Rules:
- It writes only to topics that it creates, or to the one canary topic that the user names.
- It injects no faults, unless the user allows them. Whether a fault is possible at all is checked
  elsewhere (`shoal.experiment.faults.fault_injection.check`).
- Of the caps on rate and bytes in the file and on the command line, the lower ones apply.
"""

from dataclasses import dataclass, field, replace

from shoal.experiment.spec import Caps, ExperimentSpec
from shoal.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the user allows on the command line, and its limits."""

    canary_topic: str | None = None
    allow_faults: bool = False
    caps: Caps = field(default_factory=Caps)


def apply_permissions(spec: ExperimentSpec, permissions: Permissions) -> ExperimentSpec:
    """The experiment limited to what is allowed; raise if it needs more."""
    external = [role for role, one in spec.clusters.items() if one.engine == "external"]
    if external and spec.faults and not permissions.allow_faults:
        raise UsageError(
            f"the {external[0]} cluster is external, and the experiment injects faults",
            remedy="allow it with --allow-faults, or remove [[fault]] from the file",
        )
    return _with_canary(
        replace(spec, caps=_lower_caps(spec.caps, permissions.caps)), permissions, external
    )


def _with_canary(
    spec: ExperimentSpec, permissions: Permissions, external: list[str]
) -> ExperimentSpec:
    if permissions.canary_topic is None:
        return spec
    if len(external) < len(spec.clusters):
        raise UsageError(
            "--canary-topic names an existing topic, so every cluster must be external",
            remedy="leave out --canary-topic: the run creates its own topics",
        )
    if spec.topics.count > 1:
        raise UsageError(
            "--canary-topic names one topic, and the experiment needs several",
            remedy="set topics.count to 1",
        )
    return replace(spec, topics=replace(spec.topics, name=permissions.canary_topic, existing=True))


def _lower_caps(of_file: Caps, of_user: Caps) -> Caps:
    rates = [one.max_rate_per_s for one in (of_file, of_user) if one.max_rate_per_s]
    sizes = [one.max_bytes for one in (of_file, of_user) if one.max_bytes]
    return Caps(min(rates, default=0.0), min(sizes, default=0))
