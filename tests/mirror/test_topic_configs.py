"""With which configs topics are created at a target: explicit ones, and only those it knows."""

from collections.abc import Iterable
from typing import Any

import pytest

from shoal.client.admin import (
    Admin,
    ConfigChange,
    ConfigEntry,
    NewTopic,
    Operation,
    Resource,
    ResourceType,
)
from shoal.client.codes import Code
from shoal.client.errors import error_for
from shoal.lite.cluster import LiteCluster
from shoal.mirror.mm2.patterns import CONFIGS_EXCLUDE, Patterns
from shoal.mirror.mm2.topic_configs import creation_configs, select_configs, unknown_configs
from support.mirror.copies import assert_same, config_of, fill, make_topic, mirror_all
from support.mirror.runs import client, running, setting

_BEFORE = "message.timestamp.before.max.ms"


def _entry(name: str, value: str | None, *, is_own: bool = False) -> ConfigEntry:
    return ConfigEntry(name, value, not is_own, False, False, is_own)


def test_only_what_is_set_at_the_topic_is_sent_when_it_is_created() -> None:
    source = {
        entry.name: entry
        for entry in (
            _entry(_BEFORE, "9223372036854775807"),
            _entry("retention.ms", "604800000"),
            _entry("segment.bytes", "1048576", is_own=True),
            _entry("min.insync.replicas", "2", is_own=True),
            _entry("compression.type", "zstd", is_own=True),
        )
    }
    excluded = Patterns(CONFIGS_EXCLUDE)
    assert creation_configs(source, excluded) == {
        "segment.bytes": "1048576",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
    }
    assert select_configs(source, excluded).keys() == {_BEFORE, "retention.ms", "segment.bytes"}


@pytest.mark.parametrize(
    ("refusal", "unknown"),
    [
        ("Unknown topic config name: delete.retention.ms", ["delete.retention.ms"]),
        (f"INVALID_CONFIG: unknown config {_BEFORE}.", [_BEFORE]),
        ("Unknown topic config name: something.else", []),
        ("Invalid value -5 for configuration retention.ms", []),
        ("", []),
    ],
)
def test_names_that_a_target_does_not_know_are_read_from_its_refusal(
    refusal: str, unknown: list[str]
) -> None:
    sent = ["retention.ms", "delete.retention.ms", _BEFORE]
    assert unknown_configs(sent, refusal) == unknown


async def test_an_older_target_gets_the_topic_without_configs_that_it_does_not_know(
    source: LiteCluster,
    target: LiteCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create = Admin.create_topics

    async def create_as_before_3_6(
        admin: Admin, topics: Iterable[NewTopic], **options: Any
    ) -> object:
        wanted = list(topics)
        if any(_BEFORE in topic.configs for topic in wanted):
            text = f"Unknown topic config name: {_BEFORE}"
            raise error_for(Code.INVALID_CONFIG, topic=wanted[0].name, message=text)
        return await create(admin, wanted, **options)

    configs = {_BEFORE: "3600000000", "retention.ms": "7200000"}
    async with client(source.bootstrap) as one:
        await one.admin.create_topics([NewTopic("skewed", 1, 1, configs=configs)])
    fill(source.bootstrap, "skewed", range(50))
    monkeypatch.setattr(Admin, "create_topics", create_as_before_3_6)
    config = config_of(source.bootstrap, target.bootstrap, "skewed", name="skewed")
    await mirror_all(config)
    assert await setting(target.bootstrap, "skewed", "retention.ms") == "7200000"
    assert f"without {_BEFORE}" in caplog.text
    await assert_same(source.bootstrap, target.bootstrap, "skewed", 50)


async def test_what_the_source_inherits_is_set_where_the_target_would_inherit_another_value(
    source: LiteCluster,
) -> None:
    with LiteCluster(properties={"log.retention.ms": "3600000"}) as target:
        await make_topic(source.bootstrap, "inherits")
        fill(source.bootstrap, "inherits", range(10))
        config = config_of(source.bootstrap, target.bootstrap, "inherits", name="inherits")
        await mirror_all(config)
        inherited = await setting(source.bootstrap, "inherits", "retention.ms")
        assert await setting(target.bootstrap, "inherits", "retention.ms") == inherited


@pytest.mark.parametrize("was_created_by", ["this version", "an earlier version"])
@pytest.mark.quick("this version")
async def test_a_codec_of_the_targets_brokers_does_not_concern_a_mirrors_topic(
    source: LiteCluster, was_created_by: str
) -> None:
    topic = "codec-" + was_created_by.split(maxsplit=1)[0]
    with LiteCluster(properties={"compression.type": "gzip"}) as target:
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(50))
        if was_created_by == "an earlier version":
            # Which set nothing, and did not look at a topic that it had made.
            await make_topic(target.bootstrap, topic, compression_type="producer")
        config = config_of(source.bootstrap, target.bootstrap, topic, name=topic)
        await mirror_all(config)
        if was_created_by == "an earlier version":
            await _drop_setting(target.bootstrap, topic, "compression.type")
        fill(source.bootstrap, topic, range(50, 100))
        assert (await mirror_all(config)).counts.records == 50
        assert await setting(target.bootstrap, topic, "compression.type") == "producer"
        await assert_same(source.bootstrap, target.bootstrap, topic, 100)


async def _drop_setting(bootstrap: str, topic: str, name: str) -> None:
    async with client(bootstrap) as one:
        change = ConfigChange(name, None, Operation.DELETE)
        await one.admin.alter_configs({Resource(ResourceType.TOPIC, topic): [change]})


async def test_a_topic_that_asks_for_a_codec_by_its_own_setting_is_still_refused(
    source: LiteCluster, target: LiteCluster
) -> None:
    await make_topic(source.bootstrap, "own-codec")
    await make_topic(source.bootstrap, "own-plain")
    await make_topic(target.bootstrap, "own-codec", compression_type="gzip")
    config = config_of(source.bootstrap, target.bootstrap, "own-.*", name="own-codec")
    async with running(config) as mirror:
        status = await mirror.until(lambda status: bool(status.refused))
    assert "compression.type=gzip" in str(status.refused[0])
