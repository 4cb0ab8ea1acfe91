"""Topics, settings and producer ids: validates requests and returns the records for them.

Pure: each function reads the state and returns records, or raises `ApiError` with Apache Kafka's
code. So a request can be validated without being applied. Random values (ids of new topics) are
arguments.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.settings import (
    ConfigSetting,
    SettingType,
    UpdateMode,
    broker_setting,
    topic_setting,
)
from shoal.lite.metadata.data.records import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    ConfigEdit,
    NewTopicSpec,
)
from shoal.lite.metadata.data.state import ALL_BROKERS, CLUSTER_WIDE, MIRROR, TOPIC, ClusterState
from shoal.lite.metadata.rules.features import FEATURE, FEATURES
from shoal.lite.metadata.rules.lookup import require_topic
from shoal.lite.metadata.rules.placement import place_replicas, validate_replicas
from shoal.model.topics import LONGEST_TOPIC_NAME, is_topic_name

# Apache Kafka gives producer ids to brokers in blocks of this many.
PRODUCER_ID_BLOCK = 1000
# Apache Kafka's limit on what one request may create.
_MAX_PARTITIONS = 10_000


def allocate_producer_ids(state: ClusterState) -> list[Record]:
    """Allocate a block of unused producer ids."""
    return [ProducerIdsRecord(state.next_producer_id + PRODUCER_ID_BLOCK)]


def create_topic(state: ClusterState, wanted: NewTopicSpec, topic_id: UUID) -> list[Record]:
    check_topic_name(wanted.name)
    if wanted.name in state.topics:
        raise ApiError(Code.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
    _check_collision(state, wanted.name)
    records: list[Record] = [TopicRecord(topic_id, wanted.name)]
    for name, value in wanted.configs.items():
        if value is None:
            raise ApiError(Code.INVALID_CONFIG, f"{name} needs a value")
        topic_setting(name).check(value)
        records.append(ConfigRecord(TOPIC, wanted.name, name, value))
    records += [
        _new_partition(state, topic_id, partition, replicas)
        for partition, replicas in enumerate(_assignments(state, wanted))
    ]
    return records


def delete_topic(state: ClusterState, topic_id: UUID) -> list[Record]:
    if topic_id not in state.topic_names:
        raise ApiError(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return [TopicRemovedRecord(topic_id)]


def create_partitions(
    state: ClusterState, name: str, count: int, assignments: Sequence[Sequence[int]] | None
) -> list[Record]:
    """Grow a topic to `count` partitions."""
    topic = require_topic(state, name)
    present = len(topic.partitions)
    if count == present:
        raise ApiError(Code.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        message = f"The topic {name} currently has {present} partition(s); {count} would not be "
        raise ApiError(Code.INVALID_PARTITIONS, message + "an increase.")
    _check_partition_count(count - present)
    factor = len(topic.partitions[0].target_replicas)
    if assignments is None:
        added = place_replicas(state, count - present, factor)
    elif len(assignments) != count - present:
        message = f"{count - present} partition(s) are new, but {len(assignments)} are assigned."
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    else:
        added = _validate_assignments(state, assignments, factor)
    return [
        _new_partition(state, topic.topic_id, present + i, replicas)
        for i, replicas in enumerate(added)
    ]


def _new_partition(
    state: ClusterState, topic_id: UUID, index: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    """A new partition is empty, so every active replica is in sync."""
    in_sync = tuple(broker for broker in replicas if state.is_active(broker))
    if not in_sync:
        message = (
            f"none of the replicas {list(replicas)} of partition {index} is on an active broker"
        )
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return PartitionRecord(topic_id, index, replicas, in_sync, in_sync[0], 0, 0)


def alter_configs(
    state: ClusterState, owner_kind: str, owner: str, changes: Sequence[ConfigEdit]
) -> list[Record]:
    """Change settings of a topic or a broker, or features: all of them, or none."""
    if owner_kind == FEATURE:
        return change_features(changes)
    if owner_kind == MIRROR:
        return _raise_mirror_epochs(state, owner, changes)
    if owner_kind == TOPIC:
        require_topic(state, owner)
        present = state.topic_configs(owner)
    else:
        present = state.broker_configs(owner)
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise ApiError(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    if owner_kind != TOPIC and owner != ALL_BROKERS and not set(names).isdisjoint(CLUSTER_WIDE):
        message = f"{' and '.join(CLUSTER_WIDE)} are the same for all brokers"
        raise ApiError(Code.INVALID_CONFIG, message)
    new_value = _new_value_of_topic if owner_kind == TOPIC else _new_value_of_broker
    if owner_kind != TOPIC:
        _check_can_change(owner, changes)
    return [
        ConfigRecord(owner_kind, owner, change.name, new_value(change, present))
        for change in changes
    ]


def _raise_mirror_epochs(
    state: ClusterState, topic: str, changes: Sequence[ConfigEdit]
) -> list[Record]:
    """Let newer mirrors write to partitions; an older one is fenced."""
    require_topic(state, topic)
    for change in changes:
        known = state.mirror_epoch(topic, int(change.name))
        if int(change.value or -1) < known:
            message = f"a mirror of epoch {known} has taken over {topic}-{change.name}"
            raise ApiError(Code.PRODUCER_FENCED, message)
    return [ConfigRecord(MIRROR, topic, change.name, change.value) for change in changes]


def change_features(changes: Sequence[ConfigEdit]) -> list[Record]:
    """Set features to levels that the brokers support."""
    for change in changes:
        feature = FEATURES.get(change.name)
        if feature is None or not feature.least <= int(change.value or 0) <= feature.most:
            raise ApiError(
                Code.INVALID_UPDATE_VERSION,
                f"Invalid update version {change.value} for feature {change.name}. "
                "No broker supports it.",
            )
    return [ConfigRecord(FEATURE, "", change.name, change.value) for change in changes]


def _check_can_change(owner: str, changes: Sequence[ConfigEdit]) -> None:
    """Check that settings of brokers can change while the brokers run."""
    given = [broker_setting(change.name) for change in changes if change.operation != DELETE]
    fixed = [setting.name for setting in given if setting.change is UpdateMode.START]
    if fixed:
        message = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        raise ApiError(Code.INVALID_REQUEST, message)
    single = [setting.name for setting in given if setting.change is UpdateMode.PER_BROKER]
    if single and owner == ALL_BROKERS:
        message = (
            "Cannot update these configs at default cluster level, broker id must be specified"
        )
        raise ApiError(Code.INVALID_REQUEST, f"{message}: [{', '.join(single)}]")


def _new_value_of_broker(change: ConfigEdit, present: Mapping[str, str]) -> str | None:
    if change.operation == DELETE:
        return None
    try:
        return _new_value(broker_setting(change.name), change, present)
    except ApiError as refused:
        # Apache Kafka answers INVALID_CONFIG for topics and INVALID_REQUEST for brokers.
        raise ApiError(Code.INVALID_REQUEST, str(refused)) from refused


def _new_value_of_topic(change: ConfigEdit, present: Mapping[str, str]) -> str | None:
    if change.operation == DELETE:
        return None
    return _new_value(topic_setting(change.name), change, present)


def _new_value(setting: ConfigSetting, change: ConfigEdit, present: Mapping[str, str]) -> str:
    if change.value is None:
        message = f"Null value not supported for : {setting.name}"
        raise ApiError(Code.INVALID_REQUEST, message)
    if change.operation == SET:
        value = change.value
    elif change.operation in {APPEND, SUBTRACT}:
        value = _edit_list(setting, change, present)
    else:
        raise ApiError(Code.INVALID_REQUEST, f"unknown config operation {change.operation}")
    setting.check(value)
    return value


def _edit_list(setting: ConfigSetting, change: ConfigEdit, present: Mapping[str, str]) -> str:
    if setting.kind is not SettingType.LIST:
        verb = "APPEND to" if change.operation == APPEND else "SUBTRACT from"
        message = f"Can't {verb} key {setting.name} because its type is not LIST."
        raise ApiError(Code.INVALID_CONFIG, message)
    text = present.get(setting.name, setting.default) or ""
    items = [item.strip() for item in text.split(",") if item.strip()]
    named = [item.strip() for item in (change.value or "").split(",")]
    if change.operation == APPEND:
        return ",".join(items + [item for item in named if item not in items])
    return ",".join(item for item in items if item not in named)


def check_topic_name(name: str) -> None:
    """Raise `ApiError` for an invalid topic name."""
    if not is_topic_name(name):
        message = (
            f"{name[:300]!r} is not a valid topic name: use 1 to {LONGEST_TOPIC_NAME} of the "
            "characters a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'"
        )
        raise ApiError(Code.INVALID_TOPIC_EXCEPTION, message)


def _check_collision(state: ClusterState, name: str) -> None:
    # Metric names turn dots into underscores, so Apache Kafka keeps such pairs apart.
    flat = name.replace(".", "_")
    for other in state.topics:
        if other.replace(".", "_") == flat:
            message = f"Topic '{name}' collides with existing topic: {other}"
            raise ApiError(Code.INVALID_TOPIC_EXCEPTION, message)


def _assignments(state: ClusterState, wanted: NewTopicSpec) -> list[tuple[int, ...]]:
    if wanted.assignments:
        if sorted(wanted.assignments) != list(range(len(wanted.assignments))):
            message = "the assigned partitions must be numbered from 0 without a gap"
            raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
        _check_partition_count(len(wanted.assignments))
        assignments = [wanted.assignments[index] for index in range(len(wanted.assignments))]
        return _validate_assignments(state, assignments, len(assignments[0]))
    if wanted.partitions < 1:
        message = "Number of partitions was set to an invalid non-positive value."
        raise ApiError(Code.INVALID_PARTITIONS, message)
    _check_partition_count(wanted.partitions)
    return place_replicas(state, wanted.partitions, wanted.replication_factor)


def _check_partition_count(count: int) -> None:
    if count > _MAX_PARTITIONS:
        message = f"{count} partitions in one request are more than the limit of {_MAX_PARTITIONS}"
        raise ApiError(Code.POLICY_VIOLATION, message)


def _validate_assignments(
    state: ClusterState, assignments: Sequence[Sequence[int]], factor: int
) -> list[tuple[int, ...]]:
    checked = [validate_replicas(state, replicas) for replicas in assignments]
    if any(len(replicas) != factor for replicas in checked):
        message = f"every partition of the topic must have {factor} replicas"
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return checked
