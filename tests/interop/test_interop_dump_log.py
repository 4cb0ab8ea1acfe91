"""Apache Kafka's DumpLogSegments reads what a killed and recovered cluster has on its disks.

What the tool finds wrong it says in words: mismatches of an index with its log, timestamps out of
order, offsets with gaps, bytes that are no batch. None of these may be in what it prints. One
thing it says of every segment that does not begin at offset 0, of Apache Kafka's own too: that -1
is followed by its first offset. That is no gap.
"""

import re
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from support.apache.kafka_tools import KafkaTools
from support.lite.clusters import Load, create_topic, eventually, in_sync, kill_all_at_once, read

COMPLAINTS = re.compile(
    r"mismatch|out of order|is followed by|invalid bytes|isvalid: false|not found|corrupt"
    r"|exception|error",
    re.IGNORECASE,
)
FIRST_OFFSET = re.compile(r"\s*-1 is followed by (\d+)")


def files_of(cluster: LiteCluster, suffix: str) -> list[Path]:
    return sorted(path for folder in cluster.log_dirs().values() for path in folder.rglob(suffix))


def dump_log(tools: KafkaTools, files: list[Path], *options: str) -> list[str]:
    """What the tool prints about files, among it nothing that is wrong."""
    assert files
    said = tools("dump-log", *options, "--files", ",".join(map(str, files)))
    bases = {int(path.stem) for path in files}
    complaints = [
        line
        for line in said.splitlines()
        if COMPLAINTS.search(line)
        and not ((first := FIRST_OFFSET.fullmatch(line)) and int(first.group(1)) in bases)
    ]
    assert complaints == []
    return said.splitlines()


def check_disks(tools: KafkaTools, cluster: LiteCluster) -> dict[Path, list[int]]:
    """All files of all brokers; returns the offsets of the records in each log."""
    logs = files_of(cluster, "t-*/*.log")
    lines = dump_log(tools, logs, "--deep-iteration", "--print-data-log")
    offsets: dict[Path, list[int]] = {}
    current: list[int] = []
    for line in lines:
        if line.startswith("Dumping "):
            current = offsets.setdefault(Path(line.removeprefix("Dumping ")), [])
        elif found := re.search(r"\| offset: (\d+)", line):
            current.append(int(found.group(1)))
    assert set(offsets) == set(logs)
    indexes = files_of(cluster, "t-*/*.index")
    times = files_of(cluster, "t-*/*.timeindex")
    assert len(indexes) == len(times) == len(logs)
    dump_log(tools, indexes)
    dump_log(tools, times)
    for kind in (indexes, times):
        sane = dump_log(tools, kind, "--index-sanity-check")
        # That of a segment that has just begun has no entry.
        ends = ("passed sanity check.", "is empty.")
        assert sum(line.endswith(ends) for line in sane) == len(kind)
    producers = dump_log(tools, files_of(cluster, "t-*/*.snapshot"))
    assert any("producerId: " in line and "lastSequence: " in line for line in producers)
    return offsets


@pytest.mark.usefixtures("java_gateway")
def test_all_files_of_a_killed_and_recovered_cluster(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    cluster = LiteCluster(brokers=3, directory=tmp_path / "cluster").start()
    create_topic(cluster, "t", 2, 3, internal_segment_bytes="20000", index_interval_bytes="500")
    with Load(cluster, "t", 2, batch_bytes=8000) as load:
        for broker_id in (1, 2):
            cluster.kill(broker_id)
            load.goes_on()
            cluster.restart(broker_id)
            eventually(lambda: in_sync(cluster, "t") == in_sync(cluster, "t", 1) == {1, 2, 3})
        eventually(lambda: len(files_of(cluster, "t-0/*.log")) > 6)
        kill_all_at_once(cluster)
        with LiteCluster(brokers=3, directory=tmp_path / "cluster") as again:
            load.goes_on()
            load.goes_on(1)
            load.__exit__()
            load.check(again)
            eventually(lambda: in_sync(again, "t") == in_sync(again, "t", 1) == {1, 2, 3})
            count = sum(len(values) for values in read(again, "t", 2).values())
            offsets = check_disks(kafka_tools, again)
            assert sum(map(len, offsets.values())) == 3 * count
            for broker_id in (1, 2, 3):
                again.stop_node(broker_id)
            ended = check_disks(kafka_tools, again)
            assert ended == offsets
