"""`shoal produce` and `shoal consume` as two places run them that share nothing."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.lite.cluster import LiteCluster
from shoal.model.events import End, Tick
from shoal.model.findings import Verdict
from shoal.telemetry.discovery import find_runs
from shoal.telemetry.events import EventReader
from support.formats.plain import parse
from support.lite.clusters import eventually
from support.mirror.copiers import Chosen, Copier, lose

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: LiteCluster, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).partition("[")[0][:60] + str(time.time_ns())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(name, 3)]).values():
        future.result()
    return name


def shoal(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "shoal", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_output(process: "subprocess.Popen[str]", code: int = 0) -> Any:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == code, errors
    return json.loads(output) if output else errors


def produce(cluster: LiteCluster, topic: str, folder: Path, *more: object) -> Any:
    where = ("--bootstrap-server", cluster.bootstrap, "--topics", topic, "--ledger", folder)
    return shoal("-q", "produce", *where, "-o", "json", "--throughput", 3000, "--drain", 2, *more)


def consume(cluster: LiteCluster, topic: str, folder: Path, *more: object) -> Any:
    where = ("--bootstrap-server", cluster.bootstrap, "--topics", topic, "--ledger", folder)
    return shoal("-q", "consume", *where, "-o", "json", "--idle", 2, *more)


def records_of(cluster: LiteCluster, topic: str) -> list[Any]:
    reader = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found, ends = [], 0
    while ends < 3:
        message = reader.poll(30)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found.append(message)
    reader.close()
    return found


@pytest.mark.parametrize("headers", [(), ("--use-message-headers",)], ids=["body", "headers"])
@pytest.mark.quick("body")
def test_another_parser_reads_both_formats(
    cluster: LiteCluster, topic: str, tmp_path: Path, headers: tuple[str, ...]
) -> None:
    sent = wait_for_output(
        produce(cluster, topic, tmp_path, "--messages", 700, "--id", "p-1", "--lanes", 4, *headers)
    )
    assert (sent["attempts"], sent["ok"], sent["state"]) == (700, 700, "ended")
    read = [parse(message) for message in records_of(cluster, topic)]
    messages = [message for message in read if message["kind"] == 0]
    assert {message["producer"] for message in read} == {"p-1"}
    assert {message["size"] for message in messages} == {700}
    assert sorted(message["number"] for message in messages) == list(range(700))
    for message in messages:
        assert divmod(message["number"], 4) == (message["sequence"], message["lane"])
    markers = {message["lane"]: message["sequence"] for message in read if message["kind"] == 1}
    assert markers == dict.fromkeys(range(4), 175)


def test_both_ends_write_events_that_pages_find(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    assert wait_for_output(produce(cluster, topic, tmp_path / "p", "--messages", 500))["ok"] == 500
    wait_for_output(consume(cluster, topic, tmp_path / "c", "--messages", 500))
    sources = {source.folder.name: source for source in find_runs(tmp_path)}
    assert {name: source.is_alive for name, source in sources.items()} == {"p": False, "c": False}
    counted = {"p": {"sent": 500, "acknowledged": 500}, "c": {"received": 500}}
    for name, expected in counted.items():
        reader = EventReader(tmp_path / name)
        events = reader.read().events
        reader.close()
        ticks = [event for event in events if isinstance(event, Tick)]
        assert expected.items() <= ticks[-1].counters.items()
        assert ticks[0].processes[0].name.startswith("producer" if name == "p" else "consumer")
        assert sum(h.count for tick in ticks for h in tick.histograms.values()) == 500
        assert [event.outcome for event in events if isinstance(event, End)] == ["finished"]


@pytest.mark.spark
@pytest.mark.long
def test_two_places_that_share_nothing_are_judged_together(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    reading = consume(cluster, topic, tmp_path / "there")
    sending = produce(cluster, topic, tmp_path / "here", "--messages", 5001)
    assert wait_for_output(sending)["ok"] == 5001
    received = wait_for_output(reading)
    assert (received["received"], received["open_gaps"], received["duplicates"]) == (5001, 0, 0)
    assert received["missing_tails"] == 0
    assert 0 < received["latency_p50_us"] <= received["latency_p99_us"]
    audit = shoal("-q", "audit", tmp_path / "here", tmp_path / "there", "-o", "json")
    result = wait_for_output(audit)
    assert result["verdict"] == "proven"
    assert result["metrics"]["deliveries"] == 5001


def test_a_killed_producer_goes_on_above_what_it_may_have_sent(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    named = ("--run", "r", "--id", "p")
    first = produce(cluster, topic, tmp_path / "p", *named, "--throughput", 500)
    reading = consume(cluster, topic, tmp_path / "c", "--run", "r", "--idle", 60)
    eventually(lambda: len(list((tmp_path / "c/ledger/receipts").glob("*.parquet"))) > 0)
    first.kill()
    first.communicate()
    wait_for_output(produce(cluster, topic, tmp_path / "p", *named, "--messages", 6000))
    numbers = [parse(message)["number"] for message in records_of(cluster, topic)]
    messages = [number for number in numbers if number < 6000]
    assert len(messages) == len(set(messages))
    reading.send_signal(signal.SIGINT)
    received = wait_for_output(reading)
    assert received["duplicates"] == 0
    assert received["received"] == len(messages)
    other = produce(cluster, topic, tmp_path / "p", "--run", "another", "--id", "p")
    assert "contains ledgers of another run" in wait_for_output(other, code=2)


def test_every_promise_of_a_producer_and_a_group_of_readers(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    shared = ("--run", "t", "--assignment", "group", "--group", f"g-{topic}", "--idle", 8)
    one = consume(cluster, topic, tmp_path / "one", *shared, "--id", "one")
    two = consume(cluster, topic, tmp_path / "two", *shared, "--id", "two")
    plain = ("--run", "t", "--group", "all", "--isolation-level", "read_committed")
    three = consume(cluster, topic, tmp_path / "three", *plain, "--broker-id", 1)
    # Who comes late to a group may have nothing left to read.
    joined = [tmp_path / name / "ledger/assignments" for name in ("one", "two")]
    eventually(lambda: all(any(folder.glob("*.parquet")) for folder in joined))
    rates = ("--shape", "ramp", "--ramp", 1, "--ramp-from", 0.2, "--messages", 3000)
    how = ("--driver", "confluent", "--transaction-messages", 250, "--abort-every", 4)
    packed = ("--compression-type", "lz4", "--payload", "compressible:4", "--linger-ms", 2)
    sent = wait_for_output(
        produce(cluster, topic, tmp_path / "p", "--run", "t", *rates, *how, *packed)
    )
    assert (sent["ok"], sent["failed"], sent["unknown"]) == (2250, 750, 0)
    assert (sent["transactions_committed"], sent["transactions_aborted"]) == (9, 3)
    halves = [wait_for_output(one)["received"], wait_for_output(two)["received"]]
    assert sum(halves) >= 2250
    assert wait_for_output(three)["received"] == 2250
    folders = [tmp_path / name for name in ("p", "one", "two", "three")]
    result = audit(open_ledger(folders))
    assert result.verdict is Verdict.PROVEN, result.findings
    assert (result.metrics.ok, result.metrics.failed) == (2250, 750)


@pytest.mark.long
def test_a_mirror_that_renames_and_merges_topics_is_judged_by_what_messages_say(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(f"{topic}-2", 3)]).values():
        future.result()
    both = f"{topic},{topic}-2"
    wait_for_output(produce(cluster, both, tmp_path / "p", "--run", "r", "--messages", 600))
    with LiteCluster() as there:
        admin = AdminClient({"bootstrap.servers": there.bootstrap})
        for future in admin.create_topics([NewTopic("merged", 3)]).values():
            future.result()
        clusters = {"source": cluster.bootstrap, "target": there.bootstrap}
        routes = dict.fromkeys(both.split(","), "merged")
        with Copier(clusters, routes, changes=[lose(Chosen(every=100, below=100))]):
            received = wait_for_output(consume(there, "merged", tmp_path / "c", "--run", "r"))
    assert received["received"] == 594
    result = audit(open_ledger([tmp_path / "p", tmp_path / "c"]))
    assert {name: found.count for name, found in result.findings.items()} == {
        "lost: unlocated": 6,
        "tail loss": 6,
    }
    assert result.metrics.delivered_ok == 594


@pytest.mark.long
def test_markers_are_not_messages_to_a_consumer_that_waits_for_so_many(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    wait_for_output(
        produce(cluster, topic, tmp_path / "p", "--run", "r", "--id", "first", "--messages", 9)
    )
    reading = consume(cluster, topic, tmp_path / "c", "--run", "r", "--messages", 12, "--idle", 60)
    eventually(lambda: len(list((tmp_path / "c/ledger/markers").glob("*.parquet"))) > 0)
    time.sleep(1)
    assert reading.poll() is None  # 9 messages and at least 3 markers have arrived
    wait_for_output(
        produce(cluster, topic, tmp_path / "q", "--run", "r", "--id", "second", "--messages", 3)
    )
    assert wait_for_output(reading)["received"] == 12


@pytest.mark.long
def test_two_consumers_of_one_name_are_two(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    wait_for_output(produce(cluster, topic, tmp_path / "p", "--run", "r", "--messages", 900))
    for name in ("one", "two"):
        wait_for_output(consume(cluster, topic, tmp_path / name, "--run", "r"))
    # A folder that is named twice is one.
    result = audit(open_ledger([tmp_path / name for name in ("p", "one", "two", "one")]))
    assert result.findings == {}
    assert result.verdict is Verdict.PROVEN
    assert (result.metrics.deliveries, result.metrics.re_reads) == (1800, 900)


@pytest.mark.long
def test_two_producers_of_one_id_are_two(cluster: LiteCluster, topic: str, tmp_path: Path) -> None:
    """What the second one sent is owed too, though all its numbers were received before."""
    named = ("--run", "r", "--id", "same-host", "--messages", 210)
    sent = [wait_for_output(produce(cluster, topic, tmp_path / "a", *named))]
    early = wait_for_output(
        consume(cluster, topic, tmp_path / "early", "--run", "r", "--group", "early")
    )
    sent.append(wait_for_output(produce(cluster, topic, tmp_path / "b", *named)))
    late = wait_for_output(
        consume(cluster, topic, tmp_path / "late", "--run", "r", "--group", "late")
    )
    assert [summary["ok"] for summary in sent] == [210, 210]
    assert (early["received"], late["received"]) == (210, 420)
    assert (late["duplicates"], late["late"], late["open_gaps"]) == (0, 0, 0)

    partly = audit(open_ledger([tmp_path / name for name in ("a", "b", "early")]))
    assert partly.verdict is Verdict.INCONCLUSIVE
    assert (partly.metrics.ok, partly.metrics.delivered_ok) == (420, 210)
    pending = partly.findings["pending"]
    assert (pending.count, pending.streams) == (210, 3)
    assert pending.witness is not None
    assert pending.witness["producer"] == f"same-host#{sent[1]['incarnation']:08x}"

    wholly = audit(open_ledger([tmp_path / name for name in ("a", "b", "late")]))
    assert (wholly.verdict, wholly.findings) == (Verdict.PROVEN, {})
    counts = wholly.metrics
    assert (counts.attempts, counts.ok, counts.deliveries, counts.delivered) == (420,) * 4


@pytest.mark.long
def test_a_restarted_producer_keeps_its_incarnation(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    named = ("--run", "r", "--id", "p")
    sent = [
        wait_for_output(produce(cluster, topic, tmp_path / "p", *named, "--messages", count))
        for count in (300, 600)
    ]
    assert sent[0]["incarnation"] == sent[1]["incarnation"] != 0
    read = [parse(message) for message in records_of(cluster, topic)]
    assert {message["incarnation"] for message in read} == {sent[0]["incarnation"]}
    wait_for_output(consume(cluster, topic, tmp_path / "c", "--run", "r"))
    result = audit(open_ledger([tmp_path / "p", tmp_path / "c"]))
    assert (result.verdict, result.findings) == (Verdict.PROVEN, {})


def test_a_folder_of_an_older_format_is_not_continued(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    wait_for_output(produce(cluster, topic, tmp_path, "--run", "r", "--messages", 3))
    plan = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(plan | {"format": 1}))
    refused = wait_for_output(
        produce(cluster, topic, tmp_path, "--run", "r", "--messages", 6), code=2
    )
    assert "contains ledgers of format 1; this version writes 3" in refused


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--message-size", 10), "use a size between"),
        (("--payload", "file:/nowhere"), "cannot read payloads"),
        (("--id", "a;b"), "is not a valid producer id"),
        (("--lanes", 10_001), "use 1 to 10000"),
    ],
)
@pytest.mark.quick("wrong0-use a size between")
def test_what_is_refused_takes_no_folder(
    wrong: tuple[str, object], words: str, cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    """The same command, put right, works."""
    folder = tmp_path / "p"
    assert words in wait_for_output(
        produce(cluster, topic, folder, "--messages", 3, *wrong), code=2
    )
    assert not folder.exists()
    assert wait_for_output(produce(cluster, topic, folder, "--messages", 3))["ok"] == 3


def test_topics_that_do_not_exist_are_created_on_request(
    cluster: LiteCluster, tmp_path: Path
) -> None:
    name = f"new{time.time_ns()}"
    sent = wait_for_output(
        produce(cluster, name, tmp_path / "p", "--create-topics", 3, "--messages", 30)
    )
    assert sent["ok"] == 30
    assert len(records_of(cluster, name)) >= 30
    again = produce(cluster, name, tmp_path / "q", "--create-topics", 5, "--messages", 30)
    assert wait_for_output(again)["ok"] == 30
    missing = produce(cluster, "nowhere", tmp_path / "r", "--messages", 1)
    assert "--create-topics 4 creates it" in wait_for_output(missing, 2)


def test_bad_input_gets_one_message(cluster: LiteCluster, tmp_path: Path) -> None:
    missing = wait_for_output(produce(cluster, "nowhere", tmp_path / "a", "--messages", 1), code=2)
    assert "topic nowhere does not exist" in missing
    endless = wait_for_output(
        produce(cluster, "t", tmp_path / "b", "--throughput", "inf"), code=104
    )
    assert "finite" in endless
    assert "Traceback" not in endless
    assert "is not a list of different topics" in wait_for_output(
        produce(cluster, "t,t", tmp_path / "c"), code=2
    )


def test_failed_sends_are_named_and_the_exit_code_says_so(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    """Messages that are larger than the topic allows: each is refused."""
    narrow = NewTopic(f"{topic}-narrow", 3, config={"max.message.bytes": "300"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([narrow]).values():
        future.result()
    sending = produce(cluster, narrow.topic, tmp_path, "--messages", 30, "--drain", 0)
    output, errors = sending.communicate(timeout=100)
    assert sending.returncode == 1
    sent = json.loads(output)
    assert (sent["ok"], sent["failed"]) == (0, 30)
    assert sent["errors"] == {"MESSAGE_TOO_LARGE": 30}
    assert "30 of 30 messages were not acknowledged: MESSAGE_TOO_LARGE (30)" in errors
    assert "Traceback" not in errors


def test_the_newest_run_is_read_and_a_used_folder_is_refused(
    cluster: LiteCluster, topic: str, tmp_path: Path
) -> None:
    for run, count in (("older", 90), ("newer", 60)):
        folder = tmp_path / "runs" / run
        wait_for_output(produce(cluster, topic, folder, "--run", run, "--messages", count))
    where = ("--bootstrap-server", cluster.bootstrap, "--topics", topic, "--idle", 2)
    reading = ("--ledger", tmp_path / "c", "--runs-dir", tmp_path / "runs")
    first = shoal("consume", *where, *reading)
    _, errors = first.communicate(timeout=100)
    assert first.returncode == 0, errors
    assert "reading run newer, the newest in these topics" in errors
    assert "received 60 from 3 partitions" in errors
    assert "\u2588" in errors  # the histogram of latencies
    again = shoal("consume", *where, *reading)
    refused = wait_for_output(again, code=2)
    assert "already contains ledgers of run" in refused
    assert "or choose another folder" in refused
    named = wait_for_output(consume(cluster, topic, tmp_path / "d", "--run", "older"))
    assert named["received"] == 90
