"""`shoal run` as users run it: to its end, cut short by Ctrl-C, and killed; on real Spark."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from shoal.cli.run import outline
from shoal.experiment.presets import find, presets
from shoal.experiment.runs import summarise
from shoal.experiment.spec import load_variants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXPERIMENT = """
description = "two brokers under a mirror"
[source]
brokers = 2
[target]
[topics]
partitions = 2
[producer]
rate = 500
duration = "60s"
drain_timeout = "60s"
[promises]
thresholds = ["lost<1"]
"""
GONE_WITHIN_S = 60.0


def command(tmp_path: Path, *arguments: str) -> list[str]:
    file = tmp_path / "two-brokers.toml"
    file.write_text(EXPERIMENT)
    runs = ["--runs-dir", str(tmp_path / "runs")]
    return [sys.executable, "-m", "shoal", "run", str(file), *runs, *arguments]


@contextmanager
def under_way(
    tmp_path: Path, *arguments: str, said: list[str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A run whose messages have begun to arrive; `said` gets its lines so far."""
    pipe = subprocess.PIPE
    wanted = command(tmp_path, *arguments)
    with subprocess.Popen(wanted, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if said is not None:
                said.append(line)
            if "received" in line and " 0 received" not in line:
                break
        try:
            yield process
        finally:
            process.kill()


def scrape_examples(said: str) -> list[dict[str, str]]:
    """The messages that the buckets of latency name."""
    found = re.search(r"http://\S+/metrics", said)
    assert found, said
    accept = {"Accept": "application/openmetrics-text"}
    request = urllib.request.Request(found.group(), headers=accept)  # noqa: S310 - as below
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        families = [*parse_open_metrics(answer.read().decode())]  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    return [sample.exemplar.labels for sample in samples if sample.exemplar]


def scrape(said: str) -> dict[str, float]:
    """The metrics of a run, by name, at the address that it has printed."""
    found = re.search(r"http://\S+/metrics", said)
    assert found, said
    with urllib.request.urlopen(found.group()) as answer:  # noqa: S310 - a port of the run
        families = [*text_string_to_metric_families(answer.read().decode())]
    return {sample.name: sample.value for family in families for sample in family.samples}


def the_run(tmp_path: Path) -> Path:
    (run_dir,) = (tmp_path / "runs").iterdir()
    return run_dir


def family(process: subprocess.Popen[str]) -> tuple[list[psutil.Process], set[int]]:
    """All processes under it, and the ports on which they listen."""
    children = psutil.Process(process.pid).children(recursive=True)
    ports = set()
    for child in children:
        try:
            found = child.net_connections("tcp")
        except psutil.Error:
            continue
        ports |= {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    return children, ports


def nothing_is_left(children: list[psutil.Process], ports: set[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [one for one in children if one.is_running() and not _is_zombie(one)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
    # By process, since the system may have given a port to somebody else by now.
    mine = {one.pid for one in children}
    listening = [
        one.laddr.port
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.pid in mine
    ]
    assert not ports & set(listening)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_ctrl_c_drains_judges_and_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with under_way(tmp_path, "--metrics-port", "0", said=said) as process:
        children, ports = family(process)
        assert ports
        measured = scrape("".join(said))
        examples = scrape_examples("".join(said))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "PROVEN" in out
    assert "mirror" in out
    assert measured["shoal_records_consumed_total"] > 0
    assert measured["shoal_records_produced_total"] >= measured["shoal_records_acked_total"] > 0
    assert measured["shoal_records_end_to_end_latency_seconds_count"] > 0
    assert examples
    assert {tuple(each) for each in examples} == {("run", "topic", "producer", "lane", "sequence")}
    assert "shoal_records_lost_total" not in measured  # nothing is certain before the verdict
    run_dir = the_run(tmp_path)
    assert summarise(run_dir).state == "interrupted"
    named = list(examples[0].values())
    shown = subprocess.run(
        [sys.executable, "-m", "shoal", "runs", "message", str(run_dir), *named[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "delivered" in shown.stdout or "received" in shown.stdout, shown.stdout
    result = json.loads((run_dir / "result.json").read_text())
    assert 0 < result["metrics"]["delivered"] < 30_000
    assert result["mirror"]["usage"]["cpu_s"] > 0
    assert result["mirror"]["usage"]["peak_memory_bytes"] > 0
    nothing_is_left(children, ports)


@pytest.mark.long
def test_a_killed_run_can_be_judged_as_far_as_it_went(tmp_path: Path) -> None:
    with under_way(tmp_path) as process:
        children, ports = family(process)
        time.sleep(3)  # so that some ledgers are sealed
        os.kill(process.pid, signal.SIGKILL)
        process.wait(100)
        nothing_is_left(children, ports)
    audit = [sys.executable, "-m", "shoal", "audit", str(the_run(tmp_path)), "--output", "json"]
    judged = subprocess.run(audit, capture_output=True, text=True, timeout=200, check=False)
    assert judged.returncode in (0, 5), judged.stderr  # proven, or open; nothing is lost
    assert json.loads(judged.stdout)["metrics"]["lost"] == 0


def test_a_dry_run_says_what_would_happen(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--dry-run", "--set", "producer.acks=1"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "two brokers under a mirror" in done.stdout
    assert "source    lite, 2 brokers" in done.stdout
    assert "acks 1" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_workers_are_tasks_of_the_spark_that_is_named(tmp_path: Path) -> None:
    small = ["producer.count=1", "consumer.count=1", "producer.messages=1000", "producer.rate=500"]
    preset = [sys.executable, "-m", "shoal", "run", "e2e-latency", "--master", "local[2]"]
    preset += ["--runs-dir", str(tmp_path / "runs"), *(f"--set={text}" for text in small)]
    seen: set[str] = set()
    with subprocess.Popen(preset, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            seen |= set(commands_below(process.pid))
            time.sleep(0.1)
        assert process.stdout
        assert "PROVEN" in process.stdout.read()
    assert process.returncode == 0
    assert any("pyspark" in one for one in seen)
    assert not [one for one in seen if "shoal.workers" in one]
    manifest = json.loads((the_run(tmp_path) / "run.json").read_text())
    assert manifest["master"] == "local[2]"


def commands_below(pid: int) -> Iterator[str]:
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                yield " ".join(child.cmdline())


@pytest.mark.parametrize("name", sorted(presets()))
def test_an_outline_is_written_as_people_write(name: str) -> None:
    for spec in load_variants(find(name), []):
        text = "\n".join(outline(spec))
        assert not re.search(r"\b1 (brokers|partitions|replicas|groups)\b", text), text
        assert not re.search(r"acks -1|True|False", text), text
