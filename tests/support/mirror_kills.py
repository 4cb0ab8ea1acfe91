"""A throttled copy whose mirror, source leader and target leader are killed, and its judge.

Each kill follows progress that a reader at the target has seen. The mirror is a process of its own,
started again after each kill of it. There are two judges: librdkafka, which reads both topics,
and every partition of the copy must have the same records in the same order, each once; and
`shoal mirror verify`.
"""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from shoal.lite.cluster import LiteCluster
from support.lite_clusters import admin_of, create_topic, partition_of
from support.topic_reader import SILENT, read_topic

PARTITIONS = 3
PATIENCE_S = 90.0
MIRROR, SOURCE, TARGET = "mirror", "source leader", "target leader"
_BATCH = 20


@dataclass
class Outcome:
    """What was done, and what is wrong with the copy."""

    records: int
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class MirrorKills:
    """One copy under kills."""

    def __init__(
        self, source: LiteCluster, target: LiteCluster, folder: Path, *options: str
    ) -> None:
        self._source = source
        self._target = target
        self._log = folder / "mirror.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Consumer | None = None
        self._seen = 0

    def run(
        self,
        topic: str,
        records: int,
        victims: list[str],
        say: Callable[[str], None] = lambda _: None,
        *,
        seed: int = 1,
    ) -> Outcome:
        """Copy so many records while these are killed, one after the other."""
        outcome = Outcome(records)
        choice = random.Random(seed)
        self._fill(topic, records)
        self._start(topic)
        try:
            for number, victim in enumerate(victims):
                due = int(records * (number + choice.uniform(0.2, 0.8)) / len(victims))
                there = self._await_progress(topic, due)
                say(f"{there} of {records} records; killing the {victim}")
                self._kill(topic, victim, choice)
                outcome.kills[victim] += 1
            self._await_progress(topic, records)
            self._stop()
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
        outcome.problems += self._judge(topic, records)
        return outcome

    def _fill(self, topic: str, records: int) -> None:
        create_topic(self._source, topic, PARTITIONS, len(self._source.nodes()))
        settings = {"linger.ms": 5, "batch.num.messages": _BATCH, "enable.idempotence": True}
        for number, codec in enumerate(("none", "gzip", "lz4", "zstd")):
            properties = {"bootstrap.servers": self._source.bootstrap, "compression.type": codec}
            with Producer({**properties, **settings, **SILENT}) as producer:
                for each in range(number, records, 4):
                    key, place = str(each), each // 4 % PARTITIONS
                    producer.produce(topic, f"value {each}" * 3, key, partition=place)
                    producer.poll(0)
                assert producer.flush(60) == 0

    def _start(self, topic: str) -> None:
        command = [*self._command("run", topic), "--name", "killed", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _command(self, what: str, topic: str) -> list[str]:
        command = [sys.executable, "-m", "shoal", "mirror", what, "--topics", topic]
        command += ["--source-bootstrap-server", self._source.bootstrap]
        return [*command, "--target-bootstrap-server", self._target.bootstrap]

    def _stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(30)
        self._process = None
        # One that was started a moment ago does not listen to signals yet.
        assert code in {0, -signal.SIGTERM}, (
            f"the mirror ended with {code}: {self._log.read_text()[-2000:]}"
        )

    def _kill(self, topic: str, victim: str, choice: random.Random) -> None:
        if victim == MIRROR:
            assert self._process is not None
            self._process.kill()
            self._process.wait()
            self._start(topic)
            return
        cluster = self._source if victim == SOURCE else self._target
        leader = partition_of(cluster, topic, choice.randrange(PARTITIONS)).leader
        if leader < 0:
            leader = cluster.nodes()[0].id
        cluster.kill(leader)
        cluster.restart(leader)

    def _await_progress(self, topic: str, count: int) -> int:
        """Until a reader of the target has seen so many committed records."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self._process is not None
            code = self._process.poll()
            assert code is None, f"mirror ended with {code}: {self._log.read_text()[-2000:]}"
            there = self._watch(topic)
            if there >= count:
                return there
            said = self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{there} of {count} records: {said}"

    def _watch(self, topic: str) -> int:
        if self._watcher is None:
            if self._missing(topic):
                time.sleep(0.05)
                return 0
            properties = {"bootstrap.servers": self._target.bootstrap, "group.id": "watcher"}
            settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
            self._watcher = Consumer({**properties, **settings, **SILENT})
            self._watcher.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        messages = self._watcher.consume(10_000, timeout=0.05)
        self._seen += sum(message.error() is None for message in messages)
        return self._seen

    def _missing(self, topic: str) -> bool:
        with admin_of(self._target) as admin:
            try:
                return topic not in admin.list_topics(timeout=2).topics
            except KafkaException:
                return True

    def _judge(self, topic: str, records: int) -> list[str]:
        problems = []
        verified = subprocess.run(
            self._command("verify", topic), capture_output=True, text=True, check=False
        )
        if verified.returncode != 0:
            problems.append(f"verify ended with {verified.returncode}: {verified.stdout}")
        original = read_topic(
            self._source.bootstrap, topic, partitions=PARTITIONS, count=records
        ).partitions
        copy = read_topic(
            self._target.bootstrap, topic, partitions=PARTITIONS, count=records
        ).partitions
        for number in range(PARTITIONS):
            if copy[number] != original[number]:
                extra = Counter(copy[number]) - Counter(original[number])
                lost = Counter(original[number]) - Counter(copy[number])
                problems.append(
                    f"partition {number}: {extra.total()} too many, {lost.total()} lost, "
                    f"of {len(original[number])}"
                )
        return problems


def offsets_of(cluster: LiteCluster, topic: str, number: int) -> tuple[int, int]:
    """The first offset of a partition, and the one behind the last."""
    properties = {"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"}
    with Consumer({**properties, **SILENT}) as consumer:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
    return first, end
