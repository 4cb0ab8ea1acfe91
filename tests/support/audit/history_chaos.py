"""Histories in which any line may say anything, within the format; small numbers, so they meet."""

from random import Random
from typing import Any

Line = dict[str, Any]


class Chaos:
    """Draws the lines of one history."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.mirror = random.random() < 0.6
        self.transactional = random.random() < 0.5
        self.keyed = random.random() < 0.5
        self.lines: list[Line] = []

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def optional(self, value: Any) -> Any:
        return value if self.chance(0.7) else None

    def stream(self) -> Line:
        return {
            "producer": self.random.choice("pq"),
            "topic": "t",
            "partition": self.random.choice([0, 0, 1]),
        }

    def message(self) -> Line:
        return {**self.stream(), "seq": self.random.randrange(7)}

    def add(self, kind: str, **fields: Any) -> None:
        self.lines.append({"kind": kind, **fields})

    def history(self) -> list[Line]:
        if self.chance(0.8):
            self.add(
                "run",
                delivery=self.optional(self.random.choice(["at_least_once", "exactly_once"])),
                ordered=self.optional(self.chance(0.7)),
                isolation=self.optional(self.random.choice(["read_committed", "read_uncommitted"])),
                acks=self.optional(self.random.choice(["all", "1", "all", "0"])),
                mirror=True if self.mirror else None,
            )
        self._sends()
        self._logs()
        self._readers()
        if self.chance(0.7):
            self.add("end", drained=self.chance(0.6))
        head, rest = self.lines[:1], self.lines[1:]
        if not head or head[0]["kind"] != "run":
            head, rest = [], self.lines
        self.random.shuffle(rest)
        return head + rest

    def _sends(self) -> None:
        random = self.random
        for producer in "pq":
            for partition in (0, 1):
                for sequence in range(random.choice([0, 2, 6])):
                    self._send(
                        {"producer": producer, "topic": "t", "partition": partition}, sequence
                    )
        for _ in range(random.choice([0, 0, 1, 2])):
            self._send(self.stream(), random.randrange(7))
        for _ in range(random.randrange(3)):
            self.add("manifest", **self.stream(), count=random.randrange(8))

    def _send(self, stream: Line, sequence: int) -> None:
        random = self.random
        own: Line = {}
        if self.transactional and self.chance(0.8):
            own["txn"] = random.choice(["x", "y", 1])
            own["fate"] = random.choice(["committed", "committed", "aborted", "open", None])
            own["committed_us"] = self.optional(random.randrange(60))
        self.add(
            "send",
            **stream,
            seq=sequence,
            outcome=random.choice(["ok", "ok", "ok", "failed", "unknown"]),
            offset=random.choice([sequence, sequence, None, random.randrange(9)]),
            key=random.choice(["a", "b", None]) if self.keyed else None,
            intended_us=self.optional(random.randrange(-20, 50)),
            sent_us=random.randrange(-10, 50),
            acked_us=self.optional(random.randrange(90)),
            **own,
        )

    def _logs(self) -> None:
        random = self.random
        for cluster in ("source", "target") if self.mirror else ("source",):
            for _ in range(random.choice([0, 4, 12])):
                self.add(
                    "log",
                    cluster=cluster,
                    **self.message(),
                    offset=random.randrange(9),
                    append_us=self.optional(random.randrange(-9, 60)),
                    intact=self.optional(self.chance(0.9)),
                )
            for partition in (0, 1):
                if self.chance(0.6):
                    start = random.choice([0, 0, 0, 3])
                    end = random.randrange(start, 10)
                    compacted = self.keyed and self.chance(0.7)
                    own = {"start": start, "end": end, "compacted": compacted or None}
                    self.add("scan", cluster=cluster, topic="t", partition=partition, **own)

    def _readers(self) -> None:
        random = self.random
        held = [line for line in self.lines if line["kind"] == "log"]
        candidates = [line for line in held if (line["cluster"] == "target") == self.mirror]
        chosen = [line for line in candidates if self.chance(0.6)]
        names = ("producer", "topic", "partition", "seq", "offset")
        rows = [{name: line[name] for name in names} for line in chosen]
        rows += [
            {**self.message(), "offset": random.randrange(9)} for _ in range(random.randrange(8))
        ]
        rows += [dict(random.choice(rows)) for _ in range(random.choice([0, 0, 2])) if rows]
        for row in rows:
            reader = {"consumer": random.choice("cd"), "assignment": random.choice([1, 2])}
            own = {
                "received_us": random.randrange(-5, 60),
                "intact": self.optional(self.chance(0.9)),
            }
            self.add("receive", **reader, **row, **own)
        for _ in range(random.randrange(4)):
            reader = {"consumer": random.choice("cd"), "assignment": random.choice([1, 2])}
            place = {"partition": random.randrange(2), "offset": random.randrange(9)}
            self.add("assign", **reader, topic="t", **place)
        for _ in range(random.randrange(3)):
            place = {"partition": random.randrange(2), "offset": random.randrange(9)}
            self.add("position", reader=random.choice(["mirror", "consumers"]), topic="t", **place)
