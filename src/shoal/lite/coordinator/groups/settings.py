"""The broker's settings for groups, as numbers."""

from dataclasses import dataclass

from shoal.lite.base.configs import Layers

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and times with Apache Kafka's names and meanings."""

    initial_rebalance_delay_ms: int = 0
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = (1 << 31) - 1
    # How long a new member's JoinGroup may wait: it sends no heartbeats, so nothing else shows that
    # it is gone.
    new_member_join_timeout_ms: int = 300_000


def group_settings(layers: Layers) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=layers.integer("group.initial.rebalance.delay.ms"),
        min_session_timeout_ms=layers.integer("group.min.session.timeout.ms"),
        max_session_timeout_ms=layers.integer("group.max.session.timeout.ms"),
        max_size=layers.integer("group.max.size"),
    )


def offsets_retention_ms(layers: Layers) -> int:
    return layers.integer("offsets.retention.minutes") * _MINUTE_MS
