"""A generated clean run in which defects are planted: sends, logs, receipts.

A run is kept as the lines of a history, so that planted defects are recorded in the same form as
those of real runs. A clean run is proven: every message is acknowledged, stored, mirrored and
delivered once and in order, and both logs are scanned after the drain.

Lines have no incarnations. `p#0000002a` is a second producer with the id `p`: for the second judge
it is just another name, and the kernels get its id and its incarnation separately.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

Line = dict[str, Any]
Name = tuple[str, str, int, int]  # topic, producer, partition, sequence

_TICK_US = 1000
_DELIVERY_US = 5000  # from send to delivery


def name_of(line: Line) -> Name:
    return line["topic"], line["producer"], line["partition"], line["seq"]


@dataclass
class SyntheticRun:
    random: Random
    run_line: Line = field(default_factory=lambda: {"kind": "run", "format": 1})
    sends: list[Line] = field(default_factory=list)
    logs: dict[str, list[Line]] = field(default_factory=lambda: {"source": [], "target": []})
    scans: list[Line] = field(default_factory=list)
    receipts: list[Line] = field(default_factory=list)
    others: list[Line] = field(default_factory=list)
    end: Line = field(default_factory=lambda: {"kind": "end", "drained": True})
    clock_us: int = 0

    @property
    def has_mirror(self) -> bool:
        return bool(self.run_line.get("mirror"))

    @property
    def read(self) -> str:
        """The cluster whose log the consumers read."""
        return "target" if self.has_mirror else "source"

    def lines(self) -> list[Line]:
        logs = [*self.logs["source"], *self.logs["target"]]
        body = [*self.sends, *logs, *self.scans, *self.receipts, *self.others]
        return [self.run_line, *body, self.end]

    def send_of(self, name: Name) -> Line:
        return next(line for line in self.sends if name_of(line) == name)

    def scan_of(self, cluster: str, partition: int) -> Line:
        return next(
            s for s in self.scans if s["cluster"] == cluster and s["partition"] == partition
        )

    def drop_from_log(self, cluster: str, *names: Name) -> None:
        kept = [line for line in self.logs[cluster] if name_of(line) not in names]
        self.logs[cluster] = kept

    def drop_receipts(self, *names: Name) -> None:
        self.receipts = [line for line in self.receipts if name_of(line) not in names]

    def append(self, cluster: str, name: Name) -> int:
        """Append a message to a log and return its offset."""
        topic, producer, partition, sequence = name
        scan = self.scan_of(cluster, partition)
        offset = int(scan["end"])
        scan["end"] = offset + 1
        place = {"topic": topic, "partition": partition, "offset": offset}
        message = {"producer": producer, "seq": sequence}
        self.clock_us += _TICK_US
        details = {"append_us": self.clock_us, "intact": True}
        line = {"kind": "log", "cluster": cluster, **place, **message, **details}
        self.logs[cluster].append(line)
        return offset

    def send(self, stream: tuple[str, str, int]) -> None:
        """Add the next message of a stream: acknowledged, mirrored and delivered."""
        used = [line["seq"] for line in self.sends if name_of(line)[:3] == stream]
        name = (*stream, max(used, default=-1) + 1)
        offset = _send(self, name)["offset"]
        self.deliver(name, self.append("target", name) if self.has_mirror else offset)

    def deliver(self, name: Name, offset: int) -> None:
        """Add a delivery by the consumer that read the partition last."""
        topic, producer, partition, sequence = name
        own = [line for line in self.receipts if line["partition"] == partition]
        reader = own[-1] if own else {"consumer": "c1", "assignment": 1}
        self.clock_us += _TICK_US
        line = {
            "kind": "receive",
            "consumer": reader["consumer"],
            "assignment": reader["assignment"],
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "producer": producer,
            "seq": sequence,
            "received_us": self.clock_us + _DELIVERY_US,
            "intact": True,
        }
        self.receipts.append(line)


def generate_clean_run(random: Random) -> SyntheticRun:
    run = SyntheticRun(random)
    run.run_line["mirror"] = True if random.random() < 0.8 else None
    run.run_line["delivery"] = random.choice(["exactly_once", "at_least_once", None])
    partitions = random.randint(1, 2)
    clusters = ("source", "target") if run.has_mirror else ("source",)
    is_compacted = random.random() < 0.2
    for partition in range(partitions):
        for cluster in clusters:
            start = random.choice([0, 0, 100])
            place = {"topic": "t", "partition": partition, "start": start, "end": start}
            scan = {"kind": "scan", "cluster": cluster, **place, "compacted": is_compacted}
            run.scans.append(scan)
        _produce(run, partition, is_transactional=random.random() < 0.4)
        _mirror_and_consume(run, partition)
    return run


def _produce(run: SyntheticRun, partition: int, *, is_transactional: bool) -> None:
    random = run.random
    producers = random.choice([["p"], ["p", "q"], ["p", "p#0000002a"]])
    counts = dict.fromkeys(producers, 0)
    for number in range(random.randint(1, 4)):
        producer = random.choice(producers)
        own = []
        for _ in range(random.randint(1, 4)):
            name = ("t", producer, partition, counts[producer])
            counts[producer] += 1
            own.append(_send(run, name))
        if is_transactional:
            for line in own:
                line |= {"txn": f"{partition}-{number}", "fate": "committed"}
                line["committed_us"] = run.clock_us
            run.scan_of("source", partition)["end"] += 1  # the control record
    for producer, count in counts.items():
        stream = {"producer": producer, "topic": "t", "partition": partition}
        run.others.append({"kind": "manifest", **stream, "count": count})


def _send(run: SyntheticRun, name: Name) -> Line:
    topic, producer, partition, sequence = name
    run.clock_us += _TICK_US
    sent_us = run.clock_us
    offset = run.append("source", name)
    line = {
        "kind": "send",
        "producer": producer,
        "topic": topic,
        "partition": partition,
        "seq": sequence,
        "outcome": "ok",
        "offset": offset,
        "key": f"k{run.random.randrange(4)}",
        "intended_us": run.random.choice([None, sent_us, sent_us - 200]),
        "sent_us": sent_us,
        "acked_us": sent_us + run.random.randint(100, 900),
    }
    run.sends.append(line)
    return line


def _mirror_and_consume(run: SyntheticRun, partition: int) -> None:
    held = [line for line in run.logs["source"] if line["partition"] == partition]
    rebalance = run.random.randrange(len(held)) if run.random.random() < 0.3 else None
    start = run.scan_of(run.read, partition)["start"]
    if run.random.random() < 0.7:
        _assign(run, partition, (1, start))
    for number, line in enumerate(held):
        name, offset = name_of(line), line["offset"]
        if run.has_mirror:
            offset = run.append("target", name)
        run.deliver(name, offset)
        if number == rebalance:
            run.receipts[-1] |= {"consumer": "c2", "assignment": 2}
            _assign(run, partition, (2, offset))


def _assign(run: SyntheticRun, partition: int, start: tuple[int, int]) -> None:
    assignment, offset = start
    reader = {"consumer": f"c{assignment}", "assignment": assignment}
    place = {"topic": "t", "partition": partition, "offset": offset}
    run.others.append({"kind": "assign", **reader, **place})
