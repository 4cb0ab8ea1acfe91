"""A throttled copy whose mirror, source leader and target leader are killed, and its judge.

Each kill follows progress that a reader at the target has seen since the last one. The mirror is
a command of its own, started again after each kill of it; its processes are killed one by one,
or all at once. A zombie is a mirror that was paused, replaced by another of its name, and
resumed.

There are two judges: librdkafka, which reads the copy and must find every record that was sent
once and in order; and `shoal mirror verify`.
"""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Protocol

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from shoal.mirror.control import send_command
from shoal.mirror.copy.depth import AUTO_DEPTH
from shoal.model.errors import ShoalError
from shoal.model.nodes import Node
from support.client.topic_reader import SILENT
from support.lite.clusters import admin_of, create_topic, partition_of

PARTITIONS = 3
PATIENCE_S = 180.0
WORKER, MIRROR = "mirror worker", "mirror"
SOURCE, TARGET = "source leader", "target leader"
VICTIMS = (WORKER, MIRROR, SOURCE, TARGET)
CODECS = ("none", "gzip", "lz4", "zstd")
NAME = "killed"
TESTS = Path(__file__).resolve().parents[2]
SMALL_FETCHES = "support.mirror.small_fetches"
# What alternates: as many batches of each kind as the mean over the last 64 needs to follow, to 20
# records after the large ones, and from there to below 8.
TINY, TINY_BATCHES = 2, 130
LARGE_MEAN = 20
LOOK_EVERY_S = 0.5
# Under this size of a burst the throttle of a mirror means something.
_LEAST_BYTES_PER_S = 2000


class Harmed(Protocol):
    """A cluster of any engine."""

    @property
    def bootstrap(self) -> str: ...

    def nodes(self) -> list[Node]: ...

    def kill(self, node_id: int) -> None: ...

    def restart(self, node_id: int) -> None: ...

    def log_dirs(self) -> dict[int, Path] | None: ...


@dataclass
class Outcome:
    """What was done, and what is wrong with the copy."""

    records: int
    kills: Counter[str] = field(default_factory=Counter)
    # How often a partition changed its depth while the same processes ran, as far as it was seen.
    switches: int = 0
    problems: list[str] = field(default_factory=list)


class MirrorKills:
    """One copy under kills."""

    def __init__(
        self,
        source: Harmed,
        target: Harmed,
        folder: Path,
        *options: str,
        batch_records: int = 20,
        depths: Sequence[str] = (),
        alternates: bool = False,
    ) -> None:
        """`depths` are those of the starts, one after the other and then from the beginning.

        With `alternates` stretches of tiny batches and of large ones (`batch_records`) follow each
        other, so that the depth `auto` changes while it copies.
        """
        self._source = source
        self._target = target
        self._log = folder / "mirror.log"
        self._options = options
        self._batch_records = batch_records
        self._depths = cycle(depths) if depths else None
        self._depth = AUTO_DEPTH  # of the last start
        self._alternates = alternates
        self._seen_depths: dict[str, str] = {}
        self._switches = 0
        self._look_at = 0.0
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
        seconds: float = 0.0,
    ) -> Outcome:
        """Copy so many records while these are killed, one after the other.

        The copy is throttled to take so many seconds, if it is told to.
        """
        outcome = Outcome(records)
        choice = random.Random(seed)
        self.fill(topic, records)
        say(f"{records} records are at the source")
        if seconds:
            rate = max(_LEAST_BYTES_PER_S, int(self._measure_stored_bytes(topic) / seconds))
            self._options = (*self._options, "--max-bytes-per-s", str(rate))
        self._process = self._start(topic)
        there = 0
        try:
            for number, victim in enumerate(victims):
                due = int(records * (number + choice.uniform(0.2, 0.8)) / len(victims))
                there = self._await_progress(topic, max(due, there + 1))
                say(f"{there} of {records} records; killing the {victim}")
                self._kill(topic, victim, choice)
                outcome.kills[victim] += 1
            self._await_progress(topic, records)
            self._stop(self._process)
        finally:
            self._end(self._process)
        outcome.switches = self._switches
        outcome.problems += self.judge(topic, records)
        return outcome

    def run_zombie(self, topic: str, records: int, *, at_ms: int = 0) -> Outcome:
        """Copy by a mirror that is paused, and by another of its name; then let both run."""
        self.fill(topic, records, at_ms=at_ms)
        zombie = heir = None
        try:
            self._process = zombie = self._start(topic)
            self._await_progress(topic, records // 4)
            zombie.send_signal(signal.SIGSTOP)
            self._process = heir = self._start(topic)
            self._await_progress(topic, records // 2)
            zombie.send_signal(signal.SIGCONT)
            self._await_progress(topic, records)
            self._stop(heir)
            # It has ended by itself, or is in step with the target and ends in order.
            self._end_gently(zombie)
        finally:
            for process in (zombie, heir):
                self._end(process)
        return Outcome(records, problems=self.judge(topic, records))

    def run_rivals(self, topic: str, records: int, kills: int, *, seed: int = 1) -> Outcome:
        """Copy by two mirrors of one name at a time, of which one is killed again and again.

        A mirror that ends because the other one is ahead of it is started again, too.
        """
        outcome = Outcome(records)
        choice = random.Random(seed)
        self.fill(topic, records)
        self._process = self._start(topic)
        rivals = [self._process]
        self._await_progress(topic, 1)  # it has a producer id, which the next one takes over
        rivals.append(self._start(topic))
        deadline = time.monotonic() + PATIENCE_S
        try:
            while (there := self._watch(topic)) < records:
                is_due = there > records * (outcome.kills[MIRROR] + 1) // (kills + 1)
                victim = choice.randrange(2) if is_due else -1
                for number, rival in enumerate(rivals):
                    if number == victim:
                        rival.kill()
                        outcome.kills[MIRROR] += 1
                    if number == victim or rival.poll() is not None:
                        rival.wait()
                        rivals[number] = self._start(topic)
                assert time.monotonic() < deadline, f"{there} of {records}: {self._read_output()}"
            for rival in rivals:
                self._end_gently(rival)
        finally:
            for rival in rivals:
                self._end(rival)
        outcome.problems += self.judge(topic, records)
        return outcome

    def fill(self, topic: str, records: int, *, at_ms: int = 0) -> None:
        """Records whose keys are numbers, in batches of all codecs."""
        factor = len(self._source.nodes())
        least = "2" if factor > 2 else "1"
        create_topic(self._source, topic, PARTITIONS, factor, min_insync_replicas=least)
        stretches = self._stretches()
        size, left = next(stretches)
        for number, codec in enumerate(CODECS):
            numbers = list(range(number, records, len(CODECS)))
            while numbers:
                self._send(topic, numbers[:left], size, codec, at_ms)
                sent = min(left, len(numbers))
                numbers, left = numbers[sent:], left - sent
                if not left:
                    size, left = next(stretches)

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Records of a batch, and how many records of such batches follow each other."""
        size = self._batch_records
        while not self._alternates:
            yield size, 1 << 40
        while True:
            yield TINY, TINY * TINY_BATCHES * PARTITIONS
            batches = round(-64 * math.log(1 - (LARGE_MEAN - TINY) / (size - TINY)))
            yield size, size * batches * PARTITIONS

    def _send(self, topic: str, numbers: Sequence[int], size: int, codec: str, at_ms: int) -> None:
        """Records with these numbers, in batches of this size."""
        settings = {"linger.ms": 5, "enable.idempotence": True, "batch.num.messages": size}
        properties = {"bootstrap.servers": self._source.bootstrap, "compression.type": codec}
        with Producer({**properties, **settings, **SILENT}) as producer:
            for each in numbers:
                place, value = _place(each), f"value {each}" * 3
                while True:
                    try:
                        producer.produce(topic, value, str(each), partition=place, timestamp=at_ms)
                        break
                    except BufferError:
                        producer.poll(0.1)
                producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0

    def _measure_stored_bytes(self, topic: str) -> int:
        """What one copy of the topic takes in the logs."""
        folders = (self._source.log_dirs() or {}).values()
        files = [file for folder in folders for file in folder.glob(f"**/{topic}-*/*.log")]
        return sum(file.stat().st_size for file in files) // max(1, len(self._source.nodes()))

    def _start(self, topic: str) -> subprocess.Popen[bytes]:
        # Nothing may be left when whoever kills here is killed.
        command = [*self._command("run", topic), "--name", NAME, "--stop-with-parent"]
        command += self._options
        if self._depths is not None:
            self._depth = next(self._depths)
            command += ["--depth", self._depth]
        self._seen_depths.clear()
        if self._alternates:
            command[command.index("shoal")] = SMALL_FETCHES
        paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths).rstrip(os.pathsep)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _command(self, what: str, topic: str) -> list[str]:
        command = [sys.executable, "-m", "shoal", "mirror", what, "--topics", topic]
        command += ["--source-bootstrap-server", self._source.bootstrap]
        return [*command, "--target-bootstrap-server", self._target.bootstrap]

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        code = process.wait(100)
        # One that was started a moment ago does not listen to signals yet.
        assert code in {0, -signal.SIGTERM}, f"the mirror ended with {code}: {self._read_output()}"

    def _end_gently(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(100)

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None and process.poll() is None:
            workers = _descendants(process.pid)
            process.kill()
            _kill_all(workers)
            process.wait()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
            self._seen = 0

    def _read_output(self) -> str:
        return self._log.read_text()[-2000:]

    def _kill(self, topic: str, victim: str, choice: random.Random) -> None:
        if victim in (WORKER, MIRROR):
            self._kill_mirror(topic, victim, choice)
            return
        cluster = self._source if victim == SOURCE else self._target
        leader = partition_of(cluster, topic, choice.randrange(PARTITIONS)).leader
        if leader < 0:
            leader = cluster.nodes()[0].id
        cluster.kill(leader)
        cluster.restart(leader)

    def _kill_mirror(self, topic: str, victim: str, choice: random.Random) -> None:
        assert self._process is not None
        workers = _descendants(self._process.pid)
        if victim == WORKER and workers:
            # The mirror itself sees to it that another takes its place, which measures again.
            self._seen_depths.clear()
            _kill_all([choice.choice(workers)])
            return
        self._process.kill()
        _kill_all(workers)
        self._process.wait()
        self._process = self._start(topic)

    def _await_progress(self, topic: str, count: int) -> int:
        """Until a reader of the target has seen so many committed records."""
        deadline = time.monotonic() + PATIENCE_S
        seen = self._seen
        while True:
            assert self._process is not None
            code = self._process.poll()
            assert code is None, f"the mirror ended with {code}: {self._read_output()}"
            there = self._watch(topic)
            self._note_depths()
            if there >= count:
                return there
            if there > seen:
                seen, deadline = there, time.monotonic() + PATIENCE_S
            assert time.monotonic() < deadline, f"{there} of {count} records: {self._read_output()}"

    def _note_depths(self) -> None:
        """Count the partitions whose depth has changed since the last look at the same start."""
        now = time.monotonic()
        if not self._alternates or self._depth != AUTO_DEPTH or now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        try:
            answers = send_command("status", NAME)
        except (ShoalError, OSError):
            return
        flows = [flow for answer in answers for flow in answer["flows"].values() if flow]
        for each in (each for flow in flows for each in flow["partitions"] if each["depth"]):
            source = str(each["source"])
            self._switches += self._seen_depths.get(source, each["depth"]) != each["depth"]
            self._seen_depths[source] = each["depth"]

    def _watch(self, topic: str) -> int:
        if self._watcher is None:
            if self._missing(topic):
                time.sleep(0.05)
                return 0
            self._watcher = _reader(self._target, "watcher", topic, range(PARTITIONS))
        messages = self._watcher.consume(10_000, timeout=0.05)
        self._seen += sum(message.error() is None for message in messages)
        return self._seen

    def _missing(self, topic: str) -> bool:
        with admin_of(self._target) as admin:
            try:
                return topic not in admin.list_topics(timeout=60).topics
            except KafkaException:
                return True

    def judge(self, topic: str, records: int) -> list[str]:
        """What is wrong with the copy."""
        problems = []
        verified = subprocess.run(
            self._command("verify", topic), capture_output=True, text=True, check=False
        )
        if verified.returncode != 0:
            problems.append(f"verify ended with {verified.returncode}: {verified.stdout}")
        for number in range(PARTITIONS):
            expected = list(_numbers_sent_to(number, records))
            found = [int(key) for key in _keys(self._target, topic, number)]
            if found != expected:
                extra, lost = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
                problems.append(
                    f"partition {number}: {extra.total()} too many, {lost.total()} lost, "
                    f"of {len(expected)}"
                )
        return problems


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return found


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _place(each: int) -> int:
    return each // len(CODECS) % PARTITIONS


def _numbers_sent_to(number: int, records: int) -> Iterator[int]:
    """The numbers that were sent to a partition, in order."""
    for codec in range(len(CODECS)):
        for each in range(codec, records, len(CODECS)):
            if _place(each) == number:
                yield each


def _reader(cluster: Harmed, group: str, topic: str, partitions: range) -> Consumer:
    properties = {"bootstrap.servers": cluster.bootstrap, "group.id": group}
    settings = {
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**properties, **settings, **SILENT})
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    return consumer


def _keys(cluster: Harmed, topic: str, number: int) -> Iterator[bytes]:
    """The keys of a partition, to its end; values must be those that were sent with them."""
    deadline = time.monotonic() + PATIENCE_S
    consumer = _reader(cluster, "judge", topic, range(number, number + 1))
    try:
        while True:
            for message in consumer.consume(10_000, timeout=0.1):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                assert error is None, error
                key, value = message.key() or b"", message.value()
                assert value == b"value %b" % key * 3, f"{key!r} came with {value!r}"
                yield key
            assert time.monotonic() < deadline, f"partition {number} cannot be read to its end"
    finally:
        consumer.close()


def offsets_of(cluster: Harmed, topic: str, number: int) -> tuple[int, int]:
    """The first offset of a partition, and the one behind the last."""
    properties = {"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"}
    with Consumer({**properties, **SILENT}) as consumer:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
    return first, end
