"""Topics, settings and producer ids: wishes, and the records that would make them true.

Pure: each function looks at the state and returns records, or raises `Refused` with Apache
Kafka's code. So a wish can be checked without being granted. Chance (ids of new topics) comes
in as an argument.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.settings import Change, Kind, Setting, broker_setting, topic_setting
from shoal.lite.metadata.data.records import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)
from shoal.lite.metadata.data.requests import APPEND, DELETE, SET, SUBTRACT, ConfigChange, NewTopic
from shoal.lite.metadata.data.state import ALL_BROKERS, CLUSTER_WIDE, MIRROR, TOPIC, ClusterState
from shoal.lite.metadata.rules.features import FEATURE, FEATURES
from shoal.lite.metadata.rules.lookup import existing_topic
from shoal.lite.metadata.rules.placement import checked_replicas, place
from shoal.model.topics import LONGEST_TOPIC_NAME, is_topic_name

# Apache Kafka gives producer ids to brokers in blocks of this many.
PRODUCER_ID_BLOCK = 1000
# Apache Kafka's limit on what one request may create.
_MOST_PARTITIONS = 10_000


def allocate_producer_ids(state: ClusterState) -> list[Record]:
    """A block of ids that nobody has had."""
    return [ProducerIdsRecord(state.next_producer_id + PRODUCER_ID_BLOCK)]


def create_topic(state: ClusterState, wish: NewTopic, topic_id: UUID) -> list[Record]:
    check_topic_name(wish.name)
    if wish.name in state.topics:
        raise Refused(Code.TOPIC_ALREADY_EXISTS, f"Topic '{wish.name}' already exists.")
    _check_collision(state, wish.name)
    records: list[Record] = [TopicRecord(topic_id, wish.name)]
    for name, value in wish.configs.items():
        if value is None:
            raise Refused(Code.INVALID_CONFIG, f"{name} needs a value")
        topic_setting(name).check(value)
        records.append(ConfigRecord(TOPIC, wish.name, name, value))
    records += [
        _new_partition(state, topic_id, partition, replicas)
        for partition, replicas in enumerate(_assignments(state, wish))
    ]
    return records


def delete_topic(state: ClusterState, topic_id: UUID) -> list[Record]:
    if topic_id not in state.topic_names:
        raise Refused(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return [TopicRemovedRecord(topic_id)]


def create_partitions(
    state: ClusterState, name: str, count: int, assignments: Sequence[Sequence[int]] | None
) -> list[Record]:
    """Grow a topic to `count` partitions."""
    topic = existing_topic(state, name)
    present = len(topic.partitions)
    if count == present:
        raise Refused(Code.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        message = f"The topic {name} currently has {present} partition(s); {count} would not be "
        raise Refused(Code.INVALID_PARTITIONS, message + "an increase.")
    _check_partition_count(count - present)
    factor = len(topic.partitions[0].target_replicas)
    if assignments is None:
        added = place(state, count - present, factor)
    elif len(assignments) != count - present:
        message = f"{count - present} partition(s) are new, but {len(assignments)} are assigned."
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
    else:
        added = _checked_assignments(state, assignments, factor)
    return [
        _new_partition(state, topic.topic_id, present + i, replicas)
        for i, replicas in enumerate(added)
    ]


def _new_partition(
    state: ClusterState, topic_id: UUID, index: int, replicas: tuple[int, ...]
) -> PartitionRecord:
    """A partition is empty at first, so whoever is active is in sync."""
    in_sync = tuple(broker for broker in replicas if state.is_active(broker))
    if not in_sync:
        message = f"none of the replicas {list(replicas)} of partition {index} is up"
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return PartitionRecord(topic_id, index, replicas, in_sync, in_sync[0], 0, 0)


def alter_configs(
    state: ClusterState, owner_kind: str, owner: str, changes: Sequence[ConfigChange]
) -> list[Record]:
    """Change settings of a topic or a broker, or features: all of them, or none."""
    if owner_kind == FEATURE:
        return change_features(changes)
    if owner_kind == MIRROR:
        return _raise_mirror_epochs(state, owner, changes)
    if owner_kind == TOPIC:
        existing_topic(state, owner)
        present = state.topic_configs(owner)
    else:
        present = state.broker_configs(owner)
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise Refused(Code.INVALID_REQUEST, "Error due to duplicate config keys")
    if owner_kind != TOPIC and owner != ALL_BROKERS and not set(names).isdisjoint(CLUSTER_WIDE):
        message = f"{' and '.join(CLUSTER_WIDE)} are the same for all brokers"
        raise Refused(Code.INVALID_CONFIG, message)
    new_value = _new_value_of_topic if owner_kind == TOPIC else _new_value_of_broker
    if owner_kind != TOPIC:
        _check_can_change(owner, changes)
    return [
        ConfigRecord(owner_kind, owner, change.name, new_value(change, present))
        for change in changes
    ]


def _raise_mirror_epochs(
    state: ClusterState, topic: str, changes: Sequence[ConfigChange]
) -> list[Record]:
    """Let newer mirrors write to partitions; an older one is refused."""
    existing_topic(state, topic)
    for change in changes:
        known = state.mirror_epoch(topic, int(change.name))
        if int(change.value or -1) < known:
            message = f"a mirror of epoch {known} has taken over {topic}-{change.name}"
            raise Refused(Code.PRODUCER_FENCED, message)
    return [ConfigRecord(MIRROR, topic, change.name, change.value) for change in changes]


def change_features(changes: Sequence[ConfigChange]) -> list[Record]:
    """Set features to levels that brokers can do."""
    for change in changes:
        feature = FEATURES.get(change.name)
        if feature is None or not feature.least <= int(change.value or 0) <= feature.most:
            raise Refused(
                Code.INVALID_UPDATE_VERSION,
                f"Invalid update version {change.value} for feature {change.name}. "
                "No broker supports it.",
            )
    return [ConfigRecord(FEATURE, "", change.name, change.value) for change in changes]


def _check_can_change(owner: str, changes: Sequence[ConfigChange]) -> None:
    """Whether settings of brokers may change while they run."""
    given = [broker_setting(change.name) for change in changes if change.operation != DELETE]
    fixed = [setting.name for setting in given if setting.change is Change.START]
    if fixed:
        message = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        raise Refused(Code.INVALID_REQUEST, message)
    single = [setting.name for setting in given if setting.change is Change.PER_BROKER]
    if single and owner == ALL_BROKERS:
        message = (
            "Cannot update these configs at default cluster level, broker id must be specified"
        )
        raise Refused(Code.INVALID_REQUEST, f"{message}: [{', '.join(single)}]")


def _new_value_of_broker(change: ConfigChange, present: Mapping[str, str]) -> str | None:
    if change.operation == DELETE:
        return None
    try:
        return _new_value(broker_setting(change.name), change, present)
    except Refused as refused:
        # What is wrong for a topic is, for a broker, the request's fault.
        raise Refused(Code.INVALID_REQUEST, str(refused)) from refused


def _new_value_of_topic(change: ConfigChange, present: Mapping[str, str]) -> str | None:
    if change.operation == DELETE:
        return None
    return _new_value(topic_setting(change.name), change, present)


def _new_value(setting: Setting, change: ConfigChange, present: Mapping[str, str]) -> str:
    if change.value is None:
        message = f"Null value not supported for : {setting.name}"
        raise Refused(Code.INVALID_REQUEST, message)
    if change.operation == SET:
        value = change.value
    elif change.operation in {APPEND, SUBTRACT}:
        value = _changed_list(setting, change, present)
    else:
        raise Refused(Code.INVALID_REQUEST, f"there is no operation {change.operation}")
    setting.check(value)
    return value


def _changed_list(setting: Setting, change: ConfigChange, present: Mapping[str, str]) -> str:
    if setting.kind is not Kind.LIST:
        verb = "APPEND to" if change.operation == APPEND else "SUBTRACT from"
        message = f"Can't {verb} key {setting.name} because its type is not LIST."
        raise Refused(Code.INVALID_CONFIG, message)
    text = present.get(setting.name, setting.default) or ""
    items = [item for item in text.split(",") if item]
    named = (change.value or "").split(",")
    if change.operation == APPEND:
        return ",".join(items + [item for item in named if item not in items])
    return ",".join(item for item in items if item not in named)


def check_topic_name(name: str) -> None:
    """Raise `Refused` for a name that no topic can have."""
    if not is_topic_name(name):
        message = (
            f"{name[:300]!r} is no name for a topic: 1 to {LONGEST_TOPIC_NAME} of the characters "
            "a-z, A-Z, 0-9, '.', '_' and '-', and neither '.' nor '..'"
        )
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, message)


def _check_collision(state: ClusterState, name: str) -> None:
    # Metric names turn dots into underscores, so Apache Kafka keeps such pairs apart.
    flat = name.replace(".", "_")
    for other in state.topics:
        if other.replace(".", "_") == flat:
            message = f"Topic '{name}' collides with existing topic: {other}"
            raise Refused(Code.INVALID_TOPIC_EXCEPTION, message)


def _assignments(state: ClusterState, wish: NewTopic) -> list[tuple[int, ...]]:
    if wish.assignments:
        if sorted(wish.assignments) != list(range(len(wish.assignments))):
            message = "partitions must be assigned from 0 on, without a gap"
            raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
        _check_partition_count(len(wish.assignments))
        assignments = [wish.assignments[index] for index in range(len(wish.assignments))]
        return _checked_assignments(state, assignments, len(assignments[0]))
    if wish.partitions < 1:
        message = "Number of partitions was set to an invalid non-positive value."
        raise Refused(Code.INVALID_PARTITIONS, message)
    _check_partition_count(wish.partitions)
    return place(state, wish.partitions, wish.replication_factor)


def _check_partition_count(count: int) -> None:
    if count > _MOST_PARTITIONS:
        message = f"{count} partitions at once; {_MOST_PARTITIONS} are the most"
        raise Refused(Code.POLICY_VIOLATION, message)


def _checked_assignments(
    state: ClusterState, assignments: Sequence[Sequence[int]], factor: int
) -> list[tuple[int, ...]]:
    checked = [checked_replicas(state, replicas) for replicas in assignments]
    if any(len(replicas) != factor for replicas in checked):
        message = f"all partitions of a topic have equally many replicas, here {factor}"
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return checked
