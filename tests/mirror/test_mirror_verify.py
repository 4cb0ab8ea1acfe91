"""`shoal mirror verify`: equal logs, logs that differ in one planted way, and their exit codes."""

import asyncio
import json
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.cli.main import execute
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror import flow
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig
from shoal.mirror.proof.files import PartitionProof, Proof
from shoal.mirror.routes import Route
from shoal.mirror.status import MirrorStatus, PartitionStatus
from shoal.mirror.verify import verify
from shoal.model.errors import UsageError
from shoal.model.exit_codes import ExitCode
from shoal.model.topics import TopicPartition
from shoal.wire.records.message_sets import read_batches
from support.client.topic_reader import SILENT
from support.lite.clusters import create_topic

COUNT = 200
Sent = list[tuple[str, str, int]]  # key, value, timestamp


Both = tuple[LiteCluster, LiteCluster]


@pytest.fixture
def both(source: LiteCluster, target: LiteCluster) -> Both:
    return source, target


def _messages(count: int = COUNT) -> Sent:
    return [(f"key {n}", f"value {n}", 1_750_000_000_000 + n) for n in range(count)]


def _send(cluster: LiteCluster, topic: str, messages: Sent, *, batch: int = 20) -> None:
    properties = {"bootstrap.servers": cluster.bootstrap, "batch.num.messages": batch}
    # Long enough for batches of many records also where this process has to wait for its turn.
    properties |= {"linger.ms": 10_000, "compression.type": "lz4"}
    with Producer({**properties, **SILENT}) as producer:
        for key, value, timestamp in messages:
            producer.produce(topic, value, key, partition=0, timestamp=timestamp)
        assert producer.flush(30) == 0


def _verify(
    source: LiteCluster, target: LiteCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object]]:
    arguments = ["mirror", "verify", "--source-bootstrap-server", source.bootstrap]
    arguments += ["--target-bootstrap-server", target.bootstrap, "--topics", topic]
    capsys.readouterr()
    code = execute([*arguments, "-o", "json"])
    (report,) = json.loads(capsys.readouterr().out)
    assert execute(arguments) == code
    assert f"{topic}-0: {report['records']} records are equal" in capsys.readouterr().out
    return code, report


def _copy(source: LiteCluster, target: LiteCluster, topic: str, count: int, **rest: Any) -> None:
    config = MirrorConfig(
        {"bootstrap.servers": source.bootstrap},
        {"bootstrap.servers": target.bootstrap},
        (topic,),
        **rest,
    )

    async def until_copied() -> None:
        done = asyncio.Event()

        def look(status: MirrorStatus) -> None:
            if status.counts.records >= count:
                done.set()

        async with asyncio.timeout(60):
            await mirror_until(done.wait, config, on_status=look)

    asyncio.run(until_copied())


def test_a_mirrors_copy_is_equal_and_one_that_lags_is_not_yet(
    source: LiteCluster,
    target: LiteCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow, "STATUS_EVERY_S", 0.05)
    create_topic(source, "copied", 1, 1, retention_ms="-1")
    _send(source, "copied", _messages())
    _copy(source, target, "copied", COUNT)
    code, report = _verify(source, target, "copied", capsys)
    assert (code, report["records"], report["records_one_by_one"]) == (ExitCode.PROVEN, COUNT, 0)
    assert report["equal_batches"] == asyncio.run(_count_batches(source, "copied"))
    _send(source, "copied", _messages(7))
    code, report = _verify(source, target, "copied", capsys)
    assert (code, report["not_yet"]) == (ExitCode.INCONCLUSIVE, 7)
    # Retention at the source: what the target has more is older than the source's first.
    asyncio.run(_delete(source, TopicPartition("copied", 0), 50))
    code, report = _verify(source, target, "copied", capsys)
    assert (code, report["passed_over"]) == (ExitCode.INCONCLUSIVE, 50)
    assert report["records"] == COUNT - 50
    # All of it: there is nothing left that the target could lack.
    asyncio.run(_delete(source, TopicPartition("copied", 0), COUNT + 7))
    code, report = _verify(source, target, "copied", capsys)
    assert (code, report["passed_over"], report["difference"]) == (ExitCode.PROVEN, COUNT, None)


async def _count_batches(cluster: LiteCluster, topic: str) -> int:
    """How many the producer made: it may cut a batch in two when it is flushed."""
    partition = TopicPartition(topic, 0)
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        fetched = (await client.fetch({partition: 0}))[partition]
        return len(list(read_batches(fetched.records)))


async def _delete(cluster: LiteCluster, partition: TopicPartition, before: int) -> None:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        await client.admin.delete_records({partition: before})


def test_records_in_other_batches_are_equal(
    source: LiteCluster, target: LiteCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster, batch in ((source, 20), (target, 33)):
        create_topic(cluster, "rebatched", 1, 1, retention_ms="-1")
        _send(cluster, "rebatched", _messages(), batch=batch)
    code, report = _verify(source, target, "rebatched", capsys)
    assert (code, report["records"]) == (ExitCode.PROVEN, COUNT)
    assert report["records_one_by_one"] == COUNT


def _plant(how: str) -> Sent:
    messages = _messages()
    if how == "lost":
        del messages[77]
    elif how == "twice":
        messages.insert(78, messages[77])
    elif how == "swapped":
        messages[77], messages[78] = messages[78], messages[77]
    elif how == "value":
        messages[77] = (messages[77][0], "another", messages[77][2])
    elif how == "timestamp":
        messages[77] = (*messages[77][:2], messages[77][2] + 1)
    elif how == "more":
        messages.append(("one", "more", messages[-1][2]))
    return messages


@pytest.mark.parametrize(
    ("how", "offset", "what"),
    [
        ("lost", 77, "the key differs"),
        ("twice", 78, "the key differs"),
        ("swapped", 77, "the key differs"),
        ("value", 77, "the value differs"),
        ("timestamp", 77, "the timestamp differs"),
        ("more", COUNT, "the target has more records than the source"),
    ],
)
def test_a_planted_difference_is_found_where_it_is(
    how: str, offset: int, what: str, both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = both
    create_topic(source, f"planted-{how}", 1, 1, retention_ms="-1")
    create_topic(target, f"planted-{how}", 1, 1, retention_ms="-1")
    _send(source, f"planted-{how}", _messages())
    _send(target, f"planted-{how}", _plant(how))
    code, report = _verify(source, target, f"planted-{how}", capsys)
    source_offset = -1 if how == "more" else offset
    assert code == ExitCode.VIOLATED, report
    assert report["difference"] == {
        "source_offset": source_offset,
        "target_offset": offset,
        "what": what,
    }
    assert report["records"] == offset


def test_a_topic_that_one_cluster_lacks_holds_back_no_other(
    source: LiteCluster, target: LiteCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster in (source, target):
        create_topic(cluster, "kept", 1, 1)
    create_topic(source, "only-source", 2, 1)
    create_topic(source, "wider", 2, 1)
    create_topic(target, "wider", 1, 1)
    topics = "nowhere,only-source,wider,kept"
    arguments = ["mirror", "verify", "--source-bootstrap-server", source.bootstrap]
    arguments += ["--target-bootstrap-server", target.bootstrap, "--topics"]
    assert execute([*arguments, topics, "-o", "json"]) == ExitCode.INCONCLUSIVE
    reports = json.loads(capsys.readouterr().out)
    reasons = {
        (report["partition"]["topic"], report["partition"]["number"]): report["unavailable"]
        for report in reports
    }
    assert reasons == {
        ("nowhere", 0): "the source cluster has no topic nowhere",
        ("only-source", 0): "the target cluster has no topic only-source",
        ("only-source", 1): "the target cluster has no topic only-source",
        ("wider", 0): "",
        ("wider", 1): "the target cluster has no partition wider-1",
        ("kept", 0): "",
    }
    assert execute([*arguments, "nowhere"]) == ExitCode.USAGE


async def test_expressions_select_what_a_mirror_copies_and_nothing_is_never_equal(
    source: LiteCluster, target: LiteCluster
) -> None:
    for cluster in (source, target):
        for name in ("chosen-a", "chosen-b"):
            create_topic(cluster, name, 1, 1)
    await asyncio.to_thread(_send, source, "chosen-a", _messages(3))
    async with (
        Client({"bootstrap.servers": source.bootstrap}) as ours,
        Client({"bootstrap.servers": target.bootstrap}) as theirs,
    ):
        reports = await verify(ours, theirs, ["chosen-a", "chosen-.*"])
        assert [str(each.partition) for each in reports] == ["chosen-a-0", "chosen-b-0"]
        assert [each.not_yet for each in reports] == [3, 0]
        for topics in ([], ["missing.*"], ["chosen-a", "missing.*"], ["no such name!"]):
            with pytest.raises(UsageError) as caught:
                await verify(ours, theirs, topics)
            assert caught.value.remedy


def test_a_proof_of_other_topics_is_not_shown() -> None:
    route = Route(TopicPartition("t", 0), TopicPartition("t", 0))
    status = PartitionStatus(route, 5, 5, 0, 0, 0.0, source_topic_id="s", target_topic_id="t")
    shown: list[bool] = []
    for ids in (("s", "t"), ("s", "other"), ("other", "t"), (None, None)):
        one = PartitionProof("t-0", "t-0", 5, 5, 1, "", "", None, *ids)
        proof = Proof("m", "one:1", "two:1", 1, 1, [one])
        shown.append(proof.select([status]) == {"t-0": one})
    assert shown == [True, False, False, True]
    renamed = PartitionProof("t-0", "other-0", 5, 5, 1, "")
    assert Proof("m", "one:1", "two:1", 1, 1, [renamed]).select([status]) == {}


def test_records_that_only_the_target_deleted_are_not_proven(
    both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    for cluster in both:
        create_topic(cluster, "deleted", 1, 1, retention_ms="-1")
        _send(cluster, "deleted", _messages())
    asyncio.run(_delete(both[1], TopicPartition("deleted", 0), 150))
    code, report = _verify(*both, "deleted", capsys)
    assert (code, report["source_only"], report["records"]) == (ExitCode.INCONCLUSIVE, 150, 50)
    assert report["difference"] is None


def test_a_copy_that_began_later_is_compared_from_there(
    both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(both[0], "begun", 1, 1, retention_ms="-1")
    _send(both[0], "begun", _messages())
    start = str(_messages()[120][2])
    _copy(*both, "begun", COUNT - 120, start=start)
    code, report = _verify(*both, "begun", capsys)
    assert report["difference"] is None
    assert (code, report["not_copied"], report["records"]) == (ExitCode.INCONCLUSIVE, 120, 80)


@pytest.mark.parametrize("side", [0, 1])
def test_compacted_logs_that_differ_are_not_comparable(
    side: int, both: Both, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"compacted-{side}"
    for number, cluster in enumerate(both):
        create_topic(cluster, topic, 1, 1, cleanup_policy="compact")
        _send(cluster, topic, _messages() if number == side else _plant("lost"))
    code, report = _verify(*both, topic, capsys)
    assert (code, report["difference"]) == (ExitCode.INCONCLUSIVE, None)
    assert "cannot be compared record by record" in str(report["unavailable"])
