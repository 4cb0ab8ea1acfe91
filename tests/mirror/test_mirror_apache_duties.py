"""What a mirror owes besides data, and what it refuses, where both sides are Apache Kafka.

Source and target are the same broker: topics are called otherwise at the target.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as AclResourceType  # type: ignore[attr-defined]

from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.client.errors import AuthenticationFailed
from shoal.mirror.command import mirror_until
from shoal.mirror.config import CopyRules, MirrorConfig, TopicRules
from shoal.mirror.mm2.naming import Naming
from shoal.model.errors import UsageError
from shoal.systems.apache.apache import ApacheCluster
from support.client.topic_reader import SILENT, read_topic
from support.mirror.copies import damage
from support.mirror.runs import PATIENCE_S, client, eventually, fill, make, running, setting, values

if TYPE_CHECKING:
    from support.apache.client import SecureApache

NAMING = Naming("default", source_alias="us", target_alias="eu")


def _config(bootstrap: str, topics: str, **rules: Any) -> MirrorConfig:
    often = {"refresh_s": 0.2, "sync_configs_s": 0.2, "naming": NAMING}
    cluster = {"bootstrap.servers": bootstrap}
    return MirrorConfig(
        cluster,
        cluster,
        tuple(topics.split(",")),
        name=topics.partition("-")[0],
        rules=TopicRules(**{**often, **rules}),
    )


async def test_partitions_are_added_and_settings_follow(apache_bootstrap: str) -> None:
    topic = "tended-topic"
    await make(apache_bootstrap, topic, configs={"retention.ms": "7200000"})
    await asyncio.to_thread(fill, apache_bootstrap, topic, values("zero"))
    resource = Resource(ResourceType.TOPIC, topic)
    async with running(_config(apache_bootstrap, topic)) as mirror:
        await mirror.copied(20)
        assert await setting(apache_bootstrap, f"us.{topic}", "retention.ms") == "7200000"
        async with client(apache_bootstrap) as asked:
            await asked.admin.create_partitions({topic: 3})
            await asked.admin.alter_configs({resource: {"retention.ms": "3600000"}})
        await asyncio.to_thread(fill, apache_bootstrap, topic, values("two"), partition=2)
        await mirror.copied(40)
        await eventually(
            lambda: setting(apache_bootstrap, f"us.{topic}", "retention.ms"), "3600000"
        )
    found = await asyncio.to_thread(
        read_topic, apache_bootstrap, f"us.{topic}", partitions=3, count=40
    )
    assert [record.value for record in found.partitions[2]] == [
        value.encode() for value in values("two")
    ]


async def test_topics_that_do_not_fit_are_refused_and_others_go_on(apache_bootstrap: str) -> None:
    bad = ("unfit-narrow", "unfit-compact", "unfit-codec", "unfit-foreign")
    await make(apache_bootstrap, *bad, "unfit-not", partitions=2)
    await asyncio.to_thread(fill, apache_bootstrap, "unfit-not", values("good"))
    async with client(apache_bootstrap) as asked:
        await asked.admin.create_topics(
            [
                NewTopic("us.unfit-narrow", 1, 1),
                NewTopic("us.unfit-compact", 2, 1, configs={"cleanup.policy": "compact"}),
                NewTopic("us.unfit-codec", 2, 1, configs={"compression.type": "gzip"}),
                NewTopic("us.unfit-foreign", 2, 1),
            ]
        )
    await asyncio.to_thread(fill, apache_bootstrap, "us.unfit-foreign", values("foreign"))
    async with running(_config(apache_bootstrap, "unfit-.*,missing")) as mirror:
        status = await mirror.copied(20)
    assert all(error.remedy for error in status.refused)
    told = sorted(str(error) for error in status.refused)
    assert len(told) == 5
    for words in (
        "us.unfit-codec has compression.type=gzip",
        "us.unfit-compact has cleanup.policy=compact, the source topic has delete",
        "us.unfit-narrow has 1 partitions, the source topic has 2",
        "us.unfit-foreign-0 is not empty",
        "the source cluster has no topic missing",
    ):
        assert words in "\n".join(told)


async def test_a_topic_that_does_not_exist_is_named(apache_bootstrap: str) -> None:
    with pytest.raises(
        UsageError, match="the source cluster has no topic nowhere-at-all"
    ) as caught:
        await mirror_until(asyncio.Event().wait, _config(apache_bootstrap, "nowhere-at-all"))
    assert caught.value.remedy


def _let_see(bootstrap: str, topic: str, *, operations: tuple[AclOperation, ...]) -> None:
    """Whoever it is may do this with a topic, and nothing else."""
    kind = (AclResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*")
    rules = [AclBinding(*kind, each, AclPermissionType.ALLOW) for each in operations]
    admin = AdminClient({"bootstrap.servers": bootstrap, **SILENT})
    for made in admin.create_acls(rules).values():
        made.result(PATIENCE_S)


async def test_a_topic_that_may_not_be_written_is_parked_with_the_remedy(
    apache_bootstrap: str,
) -> None:
    await make(apache_bootstrap, "locked-in", "locked-not", "us.locked-in")
    for topic in ("locked-in", "locked-not"):
        await asyncio.to_thread(fill, apache_bootstrap, topic, values(topic))
    seen = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    await asyncio.to_thread(_let_see, apache_bootstrap, "us.locked-in", operations=seen)
    async with running(_config(apache_bootstrap, "locked-.*")) as mirror:
        status = await mirror.until(lambda status: bool(status.parked))
        await mirror.copied(20)
    assert "not allowed to use this topic" in str(status.parked[0])
    assert "allow the mirror's principal to write" in str(status.parked[0].remedy)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_wrong_credentials_are_told_with_their_cluster(
    apache: "SecureApache", side: str
) -> None:
    wrong = apache.properties("SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="bob")
    clusters = {"source": apache.properties(), "target": apache.properties(), side: wrong}
    config = MirrorConfig(
        clusters["source"], clusters["target"], ("any",), rules=TopicRules(naming=NAMING)
    )
    with pytest.raises(AuthenticationFailed, match=f"the {side} cluster: ") as caught:
        await mirror_until(asyncio.Event().wait, config)
    assert caught.value.remedy


async def test_a_damaged_batch_parks_its_partition_and_the_other_goes_on(
    apache_cluster: ApacheCluster,
) -> None:
    topic, bootstrap = "poisoned-topic", apache_cluster.bootstrap
    await make(bootstrap, topic, partitions=2)
    for number in range(2):
        await asyncio.to_thread(fill, bootstrap, topic, values("value", 200), partition=number)
    damage(apache_cluster.log_dirs(), topic, 1, 12)
    async with running(_config(bootstrap, topic)) as mirror:
        await mirror.copied(200)
        status = await mirror.until(lambda status: bool(status.parked))
    assert status.counts.records == 200
    assert "source offset 0 is damaged" in str(status.parked[0])
    assert "kafka-dump-log" in str(status.parked[0].remedy)
    damage(apache_cluster.log_dirs(), topic, 1, 12)  # which heals it
    retrying = replace(_config(bootstrap, topic), copy=CopyRules(on_bad_batch="retry"))
    async with running(retrying) as mirror:
        await mirror.copied(200)
    found = await asyncio.to_thread(read_topic, bootstrap, f"us.{topic}", partitions=2, count=400)
    assert [len(found.partitions[number]) for number in range(2)] == [200, 200]
