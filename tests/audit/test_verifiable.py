"""What Apache Kafka's verifiable tools print, judged."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shoal.audit.history.verdict import judge_verifiable, to_json
from shoal.model.errors import UsageError
from support.audit.history_files import counts

if TYPE_CHECKING:
    from support.apache.kafka_tools import KafkaTools


def success(value: str, partition: int, offset: int) -> dict[str, Any]:
    place = {"topic": "t", "partition": partition, "offset": offset}
    return {"timestamp": 1, "name": "producer_send_success", "key": None, "value": value, **place}


def record(value: str, partition: int, offset: int, at_ms: int = 2) -> dict[str, Any]:
    place = {"topic": "t", "partition": partition, "offset": offset}
    return {"timestamp": at_ms, "name": "record_data", "key": None, "value": value, **place}


def assign_partition(*partitions: int, at_ms: int = 0) -> dict[str, Any]:
    listed = [{"topic": "t", "partition": partition} for partition in partitions]
    return {"timestamp": at_ms, "name": "partitions_assigned", "partitions": listed}


def error(value: str) -> dict[str, Any]:
    return {"timestamp": 1, "name": "producer_send_error", "topic": "t", "value": value}


def save(path: Path, *lines: Any) -> Path:
    path.write_text("".join((x if type(x) is str else json.dumps(x)) + "\n" for x in lines))
    return path


def judge_files(
    tmp_path: Path, sent: list[Any], got: list[Any], *, drained: bool = True
) -> dict[str, Any]:
    files = save(tmp_path / "p", *sent), save(tmp_path / "c", *got)
    return to_json("p", judge_verifiable([files[0]], [files[1]], drained=drained))


def test_two_partitions_in_order(tmp_path: Path) -> None:
    sent = ["[2026-01-01] WARN noise", success("0", 0, 0), success("1", 1, 0), success("2", 0, 1)]
    got = [assign_partition(0, 1), record("1", 1, 0), record("0", 0, 0), record("2", 0, 1), '{"cut']
    path = tmp_path / "c"
    found = judge_files(tmp_path, sent, got[:-1])
    assert (found["verdict"], counts(found)) == ("proven", {})
    path.write_text(path.read_text() + '{"cut')
    assert judge_verifiable([tmp_path / "p"], [path], drained=True).verdict == "proven"


def test_loss_errors_and_numbers_of_which_nothing_was_reported(tmp_path: Path) -> None:
    sent = [success("7.0", 0, 0), error("7.1"), success("7.3", 0, 2), success("7.4", 0, 3)]
    sent.append({"timestamp": 9, "name": "tool_data", "sent": 7, "acked": 3})
    found = judge_files(
        tmp_path, sent, [assign_partition(0), record("7.0", 0, 0), record("7.1", 0, 1)]
    )
    assert counts(found) == {"lost: unlocated": 2, "tail loss": 2}
    metrics = found["metrics"]
    assert (metrics["attempts"], metrics["ok"], metrics["unknown"]) == (7, 3, 4)
    assert metrics["recovered"] == 1
    found = judge_files(tmp_path, sent, [assign_partition(0), record("7.0", 0, 0)], drained=False)
    assert counts(found) == {"pending": 2}


def test_what_a_killed_producer_could_not_report_is_no_surprise(tmp_path: Path) -> None:
    sent = [success("0", 0, 0), success("1", 0, 1)]
    got = [assign_partition(0), *(record(str(n), 0, n) for n in range(4))]
    found = judge_files(tmp_path, sent, got)
    assert (found["verdict"], counts(found)) == ("proven", {})
    assert (found["metrics"]["attempts"], found["metrics"]["recovered"]) == (4, 2)
    assert judge_files(tmp_path, ["killed before its first line"], got)["verdict"] == "inconclusive"
    ended = {"timestamp": 9, "name": "tool_data", "sent": 2, "acked": 2}
    assert counts(judge_files(tmp_path, [*sent, ended], got)) == {"unexpected": 2}


def test_a_clock_that_went_back_makes_no_disorder(tmp_path: Path) -> None:
    got = [assign_partition(0, at_ms=5), record("0.0", 0, 0, 9), record("0.1", 0, 1, 3)]
    found = judge_files(tmp_path, [success("0.0", 0, 0), success("0.1", 0, 1)], got)
    assert (found["verdict"], found["findings"]) == ("proven", {})


def test_a_consumer_that_received_nothing_says_so(tmp_path: Path) -> None:
    nothing = {"timestamp": 3, "name": "records_consumed", "count": 0, "partitions": []}
    found = judge_files(tmp_path, [success("0", 0, 0)], [assign_partition(0), nothing])
    assert counts(found) == {"lost: unlocated": 1, "tail loss": 1}


def test_a_rebalance_is_a_re_read(tmp_path: Path) -> None:
    sent = [success("0", 0, 0), success("1", 0, 1)]
    got = [assign_partition(0), record("0", 0, 0), record("1", 0, 1), assign_partition(0, at_ms=3)]
    found = judge_files(tmp_path, sent, [*got, record("1", 0, 1, at_ms=4)])
    assert counts(found) == {}
    assert found["metrics"]["re_reads"] == 1


@pytest.mark.parametrize(
    ("sent", "got", "reason"),
    [
        (["{"], [], "p: line 1 is not JSON"),
        ([success("x", 0, 0)], [], "`value` is not that of a VerifiableProducer"),
        ([{**success("1", 0, 0), "offset": "a"}], [], "`offset` is not a whole number"),
        ([success("1", 0, 1 << 50)], [], "p: line 1: `offset` is not a whole number from 0"),
        ([], [record("1", 1 << 40, 0)], "c: line 1: `partition` is not a whole number from 0"),
        ([success("1.1", 0, 0), success("2.1", 0, 0)], [], "several producers"),
        ([], [{"timestamp": 1, "name": "records_consumed", "count": 1}], "but not which"),
        ([], [{"timestamp": 1, "name": "partitions_assigned", "partitions": 4}], "is not a list"),
    ],
)
def test_bad_files_are_named(sent: list[Any], got: list[Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        judge_files(tmp_path, sent, got)


@pytest.mark.slow
def test_the_real_tools(apache_bootstrap: str, kafka_tools: "KafkaTools", tmp_path: Path) -> None:
    server = ("--bootstrap-server", apache_bootstrap)
    kafka_tools("topics", *server, "--create", "--topic", "verified", "--partitions", "2")
    topic = ("--topic", "verified")
    sent = kafka_tools.alone(
        "verifiable-producer", *server, *topic, "--max-messages", "200", "--value-prefix", "3"
    )
    got = kafka_tools.alone(
        *("verifiable-consumer", *server, *topic, "--group-id", "verifiers", "--verbose"),
        *("--max-messages", "200", "--reset-policy", "earliest"),
    )
    files = save(tmp_path / "p", *sent.splitlines()), save(tmp_path / "c", *got.splitlines())
    result = judge_verifiable([files[0]], [files[1]], drained=True)
    assert (result.verdict, result.findings) == ("proven", {})
    assert (result.metrics.ok, result.metrics.delivered) == (200, 200)
    lines = [line for line in got.splitlines() if '"value":"3.77"' not in line]
    result = judge_verifiable([files[0]], [save(tmp_path / "d", *lines)], drained=True)
    assert result.findings["lost: unlocated"].count == 1
