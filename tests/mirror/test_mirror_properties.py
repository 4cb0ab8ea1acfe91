"""Configuration files of MirrorMaker 2: taken as they are, and what has no effect is named."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from shoal.mirror.config import MirrorConfig
from shoal.mirror.mm2.properties import mirror_file, read_mirror_file
from shoal.model.errors import ConfigError

# In the form of the file that comes with Apache Kafka (config/connect-mirror-maker.properties).
FILE = """
# specify any number of cluster aliases
clusters = A, B
A.bootstrap.servers = A_host1:9092, A_host2:9092
B.bootstrap.servers = B_host1:9092
B.security.protocol = SASL_SSL
B.sasl.mechanism = PLAIN
B.producer.request.timeout.ms = 12345
A.consumer.max.poll.records = 4000
retry.backoff.ms = 77

A->B.enabled = true
A->B.topics = foo-.*, bar
B->A.enabled = true
B->A.topics = .*
B->A.replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy

topics.exclude = foo-secret
groups = app-.*
groups.blacklist = app-test
replication.factor = 1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
tasks.max = 4
refresh.topics.interval.seconds = 5
sync.topic.configs.enabled = false
sync.group.offsets.enabled = true
A->B.sync.group.offsets.interval.seconds = 2
emit.heartbeats.enabled = false
sync.topic.acls.enabled = true
"""


@pytest.fixture
def flows(tmp_path: Path) -> tuple[MirrorConfig, MirrorConfig]:
    path = tmp_path / "mm2.properties"
    path.write_text(FILE)
    found = read_mirror_file(path)
    there, back = found.flows
    return there, back


def test_each_flow_has_its_clusters_topics_and_name(
    flows: tuple[MirrorConfig, MirrorConfig],
) -> None:
    there, back = flows
    assert (there.name, back.name) == ("A--B", "B--A")
    assert there.topics == ("foo-.*", "bar")
    assert back.topics == (".*",)
    assert there.source["bootstrap.servers"] == "A_host1:9092, A_host2:9092"
    assert there.target == {
        "bootstrap.servers": "B_host1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "request.timeout.ms": "12345",
        "retry.backoff.ms": "77",
    }
    # What is for producers does not reach the client that reads.
    assert "request.timeout.ms" not in back.source


def test_settings_of_a_flow_go_before_those_of_all(
    flows: tuple[MirrorConfig, MirrorConfig],
) -> None:
    there, back = flows
    assert (there.rules.naming.policy, back.rules.naming.policy) == ("default", "identity")
    assert there.rules.naming.target_of("foo") == "A.foo"
    assert (there.groups.sync_s, back.groups.sync_s) == (2, 60)
    for flow in flows:
        assert flow.rules.exclude == ("foo-secret",)
        assert (flow.rules.refresh_s, flow.rules.sync_configs) == (5, False)
        assert (flow.groups.sync, flow.groups.exclude) == (True, ("app-test",))
        assert flow.heartbeats.emit is False


def test_keys_without_effect_are_named() -> None:
    lines = (line for line in FILE.splitlines() if "=" in line and not line.startswith("#"))
    properties = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines)
    assert mirror_file(properties).without_effect == [
        "A.consumer.max.poll.records",
        "checkpoints.topic.replication.factor",
        "heartbeats.topic.replication.factor",
        "offset-syncs.topic.replication.factor",
        "sync.topic.acls.enabled",
        "tasks.max",
    ]


def test_defaults_are_those_of_mirrormaker() -> None:
    (flow,) = mirror_file(
        {
            "clusters": "a,b",
            "a.bootstrap.servers": "h:1",
            "b.bootstrap.servers": "h:2",
            "a->b.enabled": "true",
        }
    ).flows
    assert flow.topics == (".*",)
    assert flow.rules.naming.target_of("x") == "a.x"
    assert flow.heartbeats.emit
    assert not flow.groups.sync
    assert MirrorConfig.from_json(flow.to_json()) == flow


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clusters": ""}, "has no setting `clusters`"),
        ({"a->b.enabled": "false"}, "no flow is enabled"),
        ({"a->b.enabled": "yes"}, "must be true or false"),
        ({"a->c.enabled": "true"}, "a->c.enabled .* not listed"),
        ({"b.bootstrap.servers": None}, "cluster b in .* has no bootstrap.servers"),
        ({"replication.policy.class": "com.acme.Policy"}, "com.acme.Policy is not supported"),
        ({"refresh.topics.interval.seconds": "often"}, "must be a number"),
        ({"topics": "("}, "not a valid regular expression"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, str | None], message: str) -> None:
    good = {
        "clusters": "a,b",
        "a.bootstrap.servers": "h:1",
        "b.bootstrap.servers": "h:2",
        "a->b.enabled": "true",
    }
    given = {key: value for key, value in {**good, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        mirror_file(given)


BASE = {
    "clusters": "A,B",
    "A.bootstrap.servers": "h:1",
    "B.bootstrap.servers": "h:2",
    "A->B.enabled": "true",
}


@pytest.mark.parametrize(
    ("key", "value", "attribute", "expected"),
    [
        ("A.consumer.auto.offset.reset", "latest", "start", "latest"),
        ("consumer.auto.offset.reset", "latest", "start", "latest"),
        ("A->B.consumer.auto.offset.reset", "LATEST", "start", "latest"),
        ("source.consumer.auto.offset.reset", "latest", "start", "latest"),
        ("A.consumer.fetch.max.bytes", "1000", "limits.fetch_bytes", 1000),
        ("A.fetch.max.bytes", "1000", "limits.fetch_bytes", 1000),
        ("A.consumer.fetch.min.bytes", "5000", "limits.fetch_min_bytes", 5000),
        ("A.consumer.fetch.max.wait.ms", "50", "limits.fetch_wait_ms", 50),
        ("A.consumer.max.partition.fetch.bytes", "77", "limits.partition_bytes", 77),
        ("B.producer.max.request.size", "4000", "limits.request_bytes", 4000),
        ("B.producer.buffer.memory", "9000", "limits.queue_bytes", 9000),
        ("B.producer.compression.type", "zstd", "copy.deep.compression_type", "zstd"),
        ("B.producer.batch.size", "999", "copy.deep.batch_size_bytes", 999),
        ("B.producer.linger.ms", "33", "copy.deep.linger_ms", 33),
        ("target.producer.linger.ms", "33", "copy.deep.linger_ms", 33),
        ("A->B.producer.linger.ms", "33", "copy.deep.linger_ms", 33),
    ],
)
def test_what_consumers_and_producers_would_do_the_mirror_does(
    key: str, value: str, attribute: str, expected: object
) -> None:
    found = mirror_file({**BASE, "use.raw.bytes": "false", key: value})
    assert attrgetter(attribute)(found.flows[0]) == expected
    assert (found.without_effect, found.only_deep) == ([], [])


@pytest.mark.parametrize(
    "key",
    [
        "A.consumer.isolation.level",
        "A.consumer.check.crcs",
        "A.consumer.group.id",
        "A.consumer.session.timeout.ms",
        "A.consumer.max.poll.records",
        # Of the other side of the flow.
        "B.consumer.auto.offset.reset",
        "B.consumer.fetch.max.bytes",
        "A.producer.compression.type",
        "A.producer.max.request.size",
        "B.producer.acks",
        "B.producer.enable.idempotence",
        "B.producer.delivery.timeout.ms",
        "B.producer.transaction.timeout.ms",
        "C.consumer.fetch.max.bytes",
    ],
)
def test_every_other_key_is_named(key: str) -> None:
    assert mirror_file({**BASE, key: "1"}).without_effect == [key]


@pytest.mark.parametrize("key", ["use.raw.bytes", "A->B.fetch.raw.bytes", "shoal.depth"])
def test_keys_for_deep_copies_are_named_where_nothing_is_copied_deep(key: str) -> None:
    keys = {"B.producer.compression.type": "zstd", "linger.ms": "3", "B.batch.size": "9"}
    raw = {key: "raw" if key == "shoal.depth" else "true"}
    assert mirror_file({**BASE, **keys}).only_deep == []
    assert mirror_file({**BASE, **keys, **raw}).only_deep == sorted(keys)
    assert mirror_file({**BASE, **keys, **raw, "shoal.deep.topics": "logs"}).only_deep == []


def test_the_narrower_key_wins() -> None:
    wide = {"consumer.fetch.max.bytes": "1", "A.fetch.max.bytes": "2"}
    (flow,) = mirror_file({**BASE, **wide}).flows
    assert flow.limits.fetch_bytes == 2
    (flow,) = mirror_file({**BASE, **wide, "A.consumer.fetch.max.bytes": "3"}).flows
    assert flow.limits.fetch_bytes == 3
    (flow,) = mirror_file(
        {**BASE, "A.consumer.auto.offset.reset": "latest", "shoal.start": "earliest"}
    ).flows
    assert flow.start == "earliest"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("A.consumer.auto.offset.reset", "none", "auto.offset.reset = none is not supported"),
        ("A.consumer.fetch.max.bytes", "many", "fetch.max.bytes must be a whole number"),
        ("B.producer.max.request.size", "0", "max.request.size must be at least 1"),
        ("shoal.max.bytes.per.s", "-1", "must be a whole number"),
    ],
)
def test_bad_values_of_clients_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mirror_file({**BASE, key: value})


def test_secrets_come_from_other_files(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("password = hidden")
    path = tmp_path / "mm2.properties"
    lines = [f"{key} = {value}" for key, value in BASE.items()]
    lines += [
        "config.providers = file",
        "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider",
        f"B.sasl.password = ${{file:{secrets}:password}}",
    ]
    path.write_text("\n".join(lines))
    found = read_mirror_file(path)
    assert found.flows[0].target["sasl.password"] == "hidden"
    assert found.without_effect == []
