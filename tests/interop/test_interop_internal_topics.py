"""The topics that coordinators keep their state in."""

from collections.abc import Callable

from shoal.wire.api_keys import ApiKey
from support.coordinator.group_members import Member, Talker, find_coordinator
from support.lite.batches import batch_of

INVALID_TOPIC = 17
TOPIC = "__consumer_offsets"


def test_clients_do_not_write_to_internal_topics(
    bootstrap: str, topic: str, new_name: Callable[[str], str]
) -> None:
    group = new_name("group")
    find_coordinator(bootstrap, group)
    with Talker(bootstrap) as client:
        for partition in range(3):
            refused = client.produce(TOPIC, batch_of(b"a"), partition=partition)
            assert refused.error_code == INVALID_TOPIC
    with Member(bootstrap, group) as admin:
        assert admin.commit(topic, 1) == 0
        assert admin.read_committed(topic)[0] == 1


def test_they_are_told_as_what_they_are(bootstrap: str, new_name: Callable[[str], str]) -> None:
    find_coordinator(bootstrap, new_name("group"))
    with Talker(bootstrap) as client:
        [told] = client.request(
            ApiKey.METADATA, 7, topics=[{"name": TOPIC}], allow_auto_topic_creation=False
        ).topics
        [configs] = client.request(
            ApiKey.DESCRIBE_CONFIGS,
            1,
            resources=[
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configuration_keys": ["cleanup.policy", "compression.type", "segment.bytes"],
                }
            ],
            include_synonyms=False,
        ).results
    assert told.is_internal
    assert {item.name: item.value for item in configs.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
