"""A second judge, written directly from the definitions, for the lines of one history.

It shares no code with the kernels and is meant to be read beside `docs/reference/definitions.md`:
everything is a dictionary or a set, one message at a time, and nothing is fast. The self-test
and the property tests compare the kernels with it: verdict, counts, smallest witnesses, metrics.

A message is (topic, producer, partition, sequence), which is also the order of witnesses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, combinations, pairwise, repeat
from typing import Any

Line = Mapping[str, Any]
Message = tuple[str, str, int, int]
Log = tuple[str, int]

_RANKS = {"ok": 0, "unknown": 1, "failed": 2}
_ALWAYS = {
    *("altered: key", "altered: headers"),  # the default promise
    *("vanished", "corrupted", "unexpected", "aborted read", "uncommitted read"),
    "reused sequence",
    *("torn transaction", "inconsistent offset", "poll skip", "non-monotonic poll"),
}


def message_of(line: Line) -> Message:
    return line["topic"], line["producer"], line["partition"], line["seq"]


def log_of(line: Line | Message) -> Log:
    return (line["topic"], line["partition"]) if isinstance(line, Mapping) else (line[0], line[2])


class PlainJudge:
    """The findings and metrics of one history."""

    def __init__(self, lines: Iterable[Line]) -> None:
        kinds: dict[str, list[Line]] = defaultdict(list)
        for line in lines:
            kinds[line["kind"]].append(line)
        self.kinds = kinds
        run = kinds["run"][0] if kinds["run"] else {}
        self.exactly_once = run.get("delivery") == "exactly_once"
        self.ordered = run.get("ordered") is not False
        self.read_committed = run.get("isolation") != "read_uncommitted"
        self.acknowledged = str(run.get("acks")) != "0"
        named = {line["cluster"] for line in [*kinds["scan"], *kinds["log"]]}
        self.mirror = run.get("mirror") is True or "target" in named
        self.read = "target" if self.mirror else "source"
        self.drained = bool(kinds["end"]) and all(line["drained"] for line in kinds["end"])
        self._gather_attempts()
        self._gather_logs()

    # ------------------------------------------------------------ lines

    def _gather_attempts(self) -> None:
        self.best: dict[Message, Line] = {}
        self.raw: dict[Message, str] = {}
        self.transaction: dict[Message, Any] = {}
        self.key: dict[Message, Any] = {}
        fates: dict[Any, set[Any]] = defaultdict(set)
        for line in self.kinds["send"]:
            fates[line["producer"], line.get("txn")].add(line.get("fate"))
        ended = {name: known - {None} for name, known in fates.items()}
        self.fate = {name: known.pop() for name, known in ended.items() if len(known) == 1}
        requested: dict[Any, int] = {}
        for line in sorted(self.kinds["send"], key=_times):
            m, name = message_of(line), (line["producer"], line.get("txn"))
            outcome = self._outcome(line)
            if m not in self.raw or _RANKS[outcome] < _RANKS[self.raw[m]]:
                self.raw[m], self.best[m] = outcome, line
            if line.get("txn") is not None and line.get("committed_us") is not None:
                at = line["committed_us"]
                requested[name] = min(at, requested.get(name, at))
        self.requested = requested
        for line in self.kinds["send"]:
            m, name = message_of(line), (line["producer"], line.get("txn"))
            if line.get("key") is not None:
                self.key.setdefault(m, line["key"])
            if name[1] is not None and self.fate.get(self.transaction.get(m), "open") == "open":
                is_better = self.fate.get(name, "open") != "open"
                self.transaction[m] = name if is_better else self.transaction.get(m, name)
        self._gather_outcomes()

    def _gather_outcomes(self) -> None:
        self.outcome = dict(self.raw)
        for m, name in self.transaction.items():
            kept = "failed" if self.raw[m] == "failed" else "ok"
            by_fate = {"aborted": "failed", "committed": kept}
            self.outcome[m] = by_fate.get(self.fate.get(name, "open"), "unknown")
        counts: dict[Any, int] = Counter()
        for line in self.kinds["manifest"]:
            stream = (line["topic"], line["producer"], line["partition"])
            counts[stream] = max(counts[stream], line["count"])
        for stream, count in counts.items():
            for sequence in range(count):
                self.outcome.setdefault((*stream, sequence), "unknown")

    def _outcome(self, line: Line) -> str:
        """With acks 0 nothing is acknowledged."""
        outcome = line["outcome"]
        return "unknown" if outcome == "ok" and not self.acknowledged else str(outcome)

    def _gather_logs(self) -> None:
        self.scans: dict[tuple[str, Log], tuple[int, int, bool]] = {}
        for line in self.kinds["scan"]:
            old = self.scans.get((line["cluster"], log_of(line)), (0, 0, False))
            new = (line["start"], line["end"], bool(line.get("compacted")))
            self.scans[line["cluster"], log_of(line)] = (
                max(old[0], new[0]),
                max(old[1], new[1]),
                old[2] or new[2],
            )
        self.found: dict[str, dict[Message, set[int]]] = {"source": {}, "target": {}}
        for line in self.kinds["log"]:
            self.found[line["cluster"]].setdefault(message_of(line), set()).add(line["offset"])
        self.receipts = list(self.kinds["receive"])
        self.delivered = {message_of(line) for line in self.receipts}
        self.delivered_transactions = {
            self.transaction[m] for m in self.delivered if m in self.transaction
        }
        self.known = {c: {m: set(o) for m, o in f.items()} for c, f in self.found.items()}
        for line in self.kinds["send"]:
            if line.get("offset") is not None and self.is_evidence(line):
                self.known["source"].setdefault(message_of(line), set()).add(line["offset"])
        for line in self.receipts:
            self.known[self.read].setdefault(message_of(line), set()).add(line["offset"])

    def is_evidence(self, send: Line) -> bool:
        """Whether the offset of a send is evidence that its message was there.

        The offset of a failed send never is. That of an unknown attempt is if its answer arrived or
        it is committed. Of an aborted transaction, messages with an answer are in the log.
        """
        if send["outcome"] == "failed":
            return False
        if send.get("acked_us") is not None:
            return True
        m = message_of(send)
        if self.outcome[m] == "failed":
            return self._outcome(send) == "ok"
        return self.is_committed(m)

    def is_hidden(self, m: Message) -> bool:
        """Whether a message belongs to an aborted or open transaction."""
        name = self.transaction.get(m)
        return name is not None and self.fate.get(name, "open") != "committed"

    def is_committed(self, m: Message) -> bool:
        if self.outcome.get(m) != "unknown" or self.raw.get(m) == "failed":
            return self.outcome.get(m) == "ok"
        seen = self.read_committed and self.transaction.get(m) in self.delivered_transactions
        return m in self.delivered or seen

    # ------------------------------------------------------------ loss

    def losses(self) -> dict[Message, str]:
        in_log = self.found["source"].keys() | self.found["target"].keys()
        owed = {m for m in in_log if not self.is_hidden(m)}
        owed |= {m for m in self.outcome if self.is_committed(m)}
        return {m: self.why(m) for m in owed - self.delivered}

    def why(self, m: Message) -> str:
        """Return the one finding under which an undelivered message is counted."""
        if m in self.found[self.read]:
            passed = max(self.known[self.read][m]) < self.position("consumers", log_of(m))
            return "lost: undelivered" if self.drained or passed else "pending"
        gone = [self.read] if m in self.found["source"] else ["source", self.read]
        if any(self.is_superseded(m, cluster) for cluster in gone):
            return "superseded"
        offset = max(self.known["source"].get(m, ()), default=None)
        mirror_at = self.position("mirror", log_of(m))
        passed_by_mirror = offset is not None and offset < mirror_at
        left = self.drained or passed_by_mirror
        target_scan = self.scans.get(("target", log_of(m)))
        expired_there = "lost: expired at target" if self.may_have_expired(m) else None
        if self.mirror and m in self.found["source"] and target_scan:
            absent = "lost: unlocated" if self.is_start_unclear(m) else "lost: not-mirrored"
            return (expired_there or absent) if left else "pending"
        if m not in self.found["source"] and self.is_inside("source", m, offset):
            if offset is None or offset >= self.scans["source", log_of(m)][0]:
                return "lost: never-stored"
            return "lost: expired"
        if self.mirror and m not in self.found["source"] and target_scan:
            gone_by = left or (offset is None and self.is_overtaken(m))
            return (expired_there or "lost: unlocated") if gone_by else "pending"
        return "lost: unlocated" if self.drained or self.is_passed(m, offset) else "pending"

    def is_passed(self, m: Message, offset: int | None) -> bool:
        """Whether a message was passed, without scans: by offset in the read log, or by order."""
        if not self.mirror and offset is not None:
            return offset < self.position("consumers", log_of(m))
        at = self.position("mirror", log_of(m))
        if self.mirror and offset is not None and at >= 0 and offset >= at:
            return False
        return self.is_overtaken(m)

    def is_overtaken(self, m: Message) -> bool:
        return self.ordered and any(d[:3] == m[:3] and d[3] > m[3] for d in self.delivered)

    def is_inside(self, cluster: str, m: Message, offset: int | None) -> bool:
        """Whether a scan decides if a message is at the offset.

        A scan of the source decides every acknowledged message: none is in flight by then.
        """
        scan = self.scans.get((cluster, log_of(m)))
        acknowledged = "ok" in (self.raw.get(m), self.outcome.get(m))
        decided = self.drained or (cluster == "source" and acknowledged)
        return scan is not None and (offset is None or offset < scan[1] or decided)

    def places(self, cluster: str, m: Message) -> set[int]:
        """Return the offsets of a message in a log, except where the scan shows it absent."""
        if m in self.found[cluster] or (cluster, log_of(m)) not in self.scans:
            return self.known[cluster][m]
        start = self.scans[cluster, log_of(m)][0]
        return {o for o in self.known[cluster][m] if o < start or not self.is_inside(cluster, m, o)}

    def position(self, reader: str, log: Log) -> int:
        """Return the recorded position, else the inferred one, else -1."""
        own = [
            p["offset"]
            for p in self.kinds["position"]
            if p["reader"] == reader and log_of(p) == log
        ]
        if own:
            return int(max(own))
        if reader == "consumers":
            return max([r["offset"] for r in self.receipts if log_of(r) == log], default=-2) + 1
        source, target = self.known["source"], self.known["target"]
        copied = [min(source[m]) for m in target if m in source and log_of(m) == log]
        return max(copied) + 1 if copied and self.ordered else -1

    def may_have_expired(self, m: Message) -> bool:
        """Whether the target's start moved past the message's neighbours."""
        start, _, _ = self.scans.get(("target", log_of(m)), (-1, -1, False))
        lower = [n for n in self.known["target"] if n[:3] == m[:3] and n[3] < m[3]]
        if lower:
            return max(self.known["target"][max(lower)]) < start
        rows = [*self.receipts, *self.kinds["assign"]]
        return any(log_of(r) == log_of(m) and r["offset"] < start for r in rows)

    def is_start_unclear(self, m: Message) -> bool:
        """Whether nothing shows if the message was below the target's start."""
        start, _, _ = self.scans.get(("target", log_of(m)), (-1, -1, False))
        lower = any(n[:3] == m[:3] and n[3] < m[3] for n in self.known["target"])
        begun = any(log_of(line) == log_of(m) for line in self.kinds["assign"])
        return start > 0 and not lower and not begun

    def is_superseded(self, m: Message, cluster: str) -> bool:
        """Whether a compacted log lacks the message and has a later one with its key."""
        _, _, is_compacted = self.scans.get((cluster, log_of(m)), (-1, -1, False))
        if not is_compacted or m in self.found[cluster] or m not in self.key:
            return False
        rivals = [n for n in self.found[cluster] if log_of(n) == log_of(m)]
        return any(self.key.get(n) == self.key[m] and self.is_later(n, m, cluster) for n in rivals)

    def is_later(self, n: Message, m: Message, cluster: str) -> bool:
        """Compare by offset in that log or the source, else by sequence, else in the target."""
        for held in (self.known[cluster], self.known["source"]):
            if n in held and m in held:
                return max(held[n]) > max(held[m])
        if n[:3] == m[:3]:
            return n[3] > m[3]
        copied = self.known["target"]
        return n in copied and m in copied and max(copied[n]) > max(copied[m])

    def find_vanished(self) -> set[Message]:
        gone = set()
        for line in self.receipts:
            m, offset = message_of(line), line["offset"]
            absent = m not in self.found[self.read] and self.is_inside(self.read, m, offset)
            if absent and offset >= self.scans[self.read, log_of(m)][0]:
                gone.add((m, self.read))
        if self.mirror:
            for m in (self.found["target"].keys() | self.delivered) - self.found["source"].keys():
                offset = max(self.known["source"].get(m, ()), default=None)
                attempted = self.raw.get(m, "unknown") != "failed" and m in self.outcome
                if attempted and self.is_inside("source", m, offset) and self.is_above(m, offset):
                    gone.add((m, "source"))
        return {m for m, cluster in gone if not self.is_superseded(m, cluster)}

    def is_above(self, m: Message, offset: int | None) -> bool:
        """Whether a message is at or above the log start of the source.

        An unknown offset is if the start is 0, or never moved and an earlier message was there.
        """
        start = self.scans["source", log_of(m)][0]
        if offset is not None or start == 0:
            return offset is None or offset >= start
        known = {n: min(o) for n, o in self.known["source"].items() if log_of(n) == log_of(m)}
        follows = any(n[:3] == m[:3] and n[3] < m[3] for n in known)
        return follows and start <= min(known.values())

    # ------------------------------------------------------------ order and polls

    def arrivals(self) -> list[Line]:
        """Return first deliveries in order of arrival: by assignment, then in line order."""
        first: dict[Message, Line] = {}
        for line in sorted(self.receipts, key=lambda line: line["assignment"]):
            first.setdefault(message_of(line), line)
        return list(first.values())

    def late(self, orders: Iterable[list[Message]]) -> list[Message]:
        return [m for order in orders for n, m in enumerate(order) if m < max(order[: n + 1])]

    def orders(self) -> list[list[Message]]:
        streams: dict[Any, list[Message]] = defaultdict(list)
        for line in self.arrivals():
            if message_of(line) in self.outcome:  # only attempts have an order
                streams[message_of(line)[:3]].append(message_of(line))
        return list(streams.values())

    def log_orders(self, cluster: str) -> list[list[Message]]:
        streams: dict[Any, list[tuple[int, Message]]] = defaultdict(list)
        for m in self.known[cluster].keys() & self.outcome.keys():
            if offsets := self.places(cluster, m):
                streams[m[:3]].append((min(offsets), m))
        return [[m for _, m in sorted(own)] for own in streams.values()]

    def polls(self) -> dict[str, list[Any]]:
        chains: dict[Any, list[int]] = defaultdict(list)
        begins: dict[Any, int] = {}
        for line in self.kinds["assign"]:
            reader = (line["consumer"], line["assignment"], *log_of(line))
            begins[reader] = max(line["offset"], begins.get(reader, 0))
        for line in self.receipts:
            chains[line["consumer"], line["assignment"], *log_of(line)].append(line["offset"])
        skips, falls = [], []
        for (consumer, assignment, topic, partition), offsets in chains.items():
            known = self.list_known_offsets((topic, partition))
            steps = list(pairwise(offsets))
            if (consumer, assignment, topic, partition) in begins:
                # Treated as if it had read the offset before the start of the assignment.
                steps.append((begins[consumer, assignment, topic, partition] - 1, offsets[0]))
            named = [(topic, partition, a, b, consumer, assignment) for a, b in steps]
            falls += [step for step in named if step[3] <= step[2]]
            skips += [step for step in named if any(step[2] < o < step[3] for o in known)]
        return {"poll skip": skips, "non-monotonic poll": falls}

    def list_known_offsets(self, log: Log) -> set[int]:
        held = (self.found if (self.read, log) in self.scans else self.known)[self.read]
        own = [m for m in held if log_of(m) == log and not self.is_hidden(m)]
        return {offset for m in own for offset in held[m]}

    def find_contested(self) -> list[Any]:
        held: dict[Any, set[Message]] = defaultdict(set)
        for cluster, known in self.known.items():
            for m, offsets in known.items():
                for offset in offsets:
                    held[cluster, *log_of(m), offset].add(m)
        return [place for place, messages in held.items() if len(messages) > 1]

    def find_reused(self) -> list[Message]:
        """Return messages acknowledged at two offsets: two attempts with one identity."""
        offsets: dict[Message, set[int]] = defaultdict(set)
        for line in self.kinds["send"]:
            if self._outcome(line) == "ok" and line.get("offset") is not None:
                offsets[message_of(line)].add(line["offset"])
        return [m for m, own in offsets.items() if len(own) > 1 and self.outcome[m] == "ok"]

    # ------------------------------------------------------------ result

    def findings(self) -> dict[str, tuple[int, Any]]:
        """Return the count and the smallest witness of each finding."""
        found: dict[str, list[Any]] = defaultdict(list)
        losses = self.losses()
        for m, why in losses.items():
            found[why].append(m)
        lost = {m for m, why in losses.items() if why.startswith("lost")}
        highest: dict[Any, int] = {}
        for m in self.delivered:
            highest[m[:3]] = max(m[3], highest.get(m[:3], -1))
        found["tail loss"] = [m for m in lost if m[3] > highest.get(m[:3], -1)]
        found["vanished"] = list(self.find_vanished())
        for cluster, known in self.known.items():
            copies = (repeat(m, len(offsets) - 1) for m, offsets in known.items())
            found[f"duplicate: {cluster}"] = list(chain.from_iterable(copies))
            found[f"reordered: {cluster}"] = self.late(self.log_orders(cluster))
        found["reordered"] = self.late(self.orders())
        found["inconsistent offset"] = self.find_contested()
        found["reused sequence"] = self.find_reused()
        found["unexpected"] = [m for m in self.delivered if m not in self.outcome]
        found |= self.polls()
        found |= self.damage()
        found |= self.transactions(lost)
        counts = {name: (len(held), min(held)) for name, held in found.items() if held}
        if "torn transaction" in counts:
            torn = {self.transaction[m] for m in found["torn transaction"]}
            counts["torn transaction"] = (len(torn), counts["torn transaction"][1])
        return counts

    def damage(self) -> dict[str, list[Any]]:
        """Return broken checksums, except those that an altered key or headers explain.

        A history cannot record such a change; the self-test adds it as `altered`.
        """
        found: dict[str, set[Message]] = defaultdict(set)
        explained = set()
        for line in self.kinds["log"]:
            m = message_of(line)
            if "altered" in line and line["intact"] is False and m in self.found["source"]:
                found[f"altered: {line['altered']}"].add(m)
                explained.add(m)
        for line in [*self.receipts, *self.kinds["log"]]:
            m = message_of(line)
            at_source = line.get("cluster") == "source"
            if line.get("intact") is False and (at_source or m not in explained):
                found["corrupted"].add(m)
        return {name: list(messages) for name, messages in found.items()}

    def transactions(self, lost: set[Message]) -> dict[str, list[Any]]:
        """Return aborted and uncommitted reads, and the lost messages of torn transactions."""
        found: dict[str, list[Any]] = {
            "aborted read": [
                m
                for m in self.delivered
                # The attempt failed itself, or only because its transaction was aborted.
                if self.raw.get(m) == "failed"
                or (self.outcome.get(m) == "failed" and self.read_committed)
            ]
        }
        if self.read_committed:
            early = [
                message_of(r)
                for r in self.receipts
                if r["received_us"]
                < self.requested.get(self.transaction.get(message_of(r)), r["received_us"])
            ]
            found["uncommitted read"] = sorted(set(early))
            delivered = self.delivered_transactions
            found["torn transaction"] = [m for m in lost if self.transaction.get(m) in delivered]
        return found

    def verdict(self) -> str:
        found = self.findings()
        broken = {name for name in found if name.startswith("lost: ") or name in _ALWAYS}
        if self.ordered:
            broken |= {name for name in found if name.startswith("reordered")}
        if self.exactly_once:
            broken |= {name for name in found if name.startswith("duplicate")}
        if broken:
            return "violated"
        acknowledged = "ok" in self.outcome.values()
        return "proven" if acknowledged and "pending" not in found else "inconclusive"

    def metrics(self) -> dict[str, Any]:
        outcomes = Counter(self.outcome.values())
        attempts, deliveries = len(self.outcome), len(self.receipts)
        re_reads = deliveries - len({(message_of(r), r["offset"]) for r in self.receipts})
        ok = {m for m, outcome in self.outcome.items() if outcome == "ok"}
        orders = self.orders()
        return {
            "attempts": attempts,
            "ok": outcomes["ok"],
            "failed": outcomes["failed"],
            "unknown": outcomes["unknown"],
            "deliveries": deliveries,
            "delivered": len(self.delivered),
            "re_reads": re_reads,
            "recovered": sum(self.outcome.get(m) == "unknown" for m in self.delivered),
            "yield": _ratio(outcomes["ok"], attempts) if self.acknowledged else None,
            "harvest": _ratio(len(self.delivered & self.outcome.keys()), attempts),
            "completeness": _ratio(len(self.delivered & ok), len(ok)),
            "duplication": _ratio(deliveries - re_reads - len(self.delivered), deliveries),
            "batches": self.batches(self.delivered & ok),
            "F": sum(abs(sorted(o).index(m) - n) for o in orders for n, m in enumerate(o)),
            "K": sum(a > b for order in orders for a, b in combinations(order, 2)),
            "latency_us": self.latencies(),
            "range_us": self.ranges(),
        }

    def batches(self, messages: set[Message]) -> int:
        """Count batches: messages sent or acknowledged at the same time as the one before."""
        count = 0
        for m in messages:
            before = max((n for n in messages if n[:3] == m[:3] and n < m), default=None)
            own, other = self.best[m], self.best.get(before) if before else None
            together = other is not None and (
                own["sent_us"] == other["sent_us"]
                or (own.get("acked_us") is not None and own["acked_us"] == other.get("acked_us"))
            )
            count += not together
        return count

    def latencies(self) -> dict[str, dict[str, Any]]:
        samples: dict[str, list[int]] = {"e2e_intended": [], "e2e_actual": [], "producer": []}
        for line in self.arrivals():
            send = self.best.get(message_of(line))
            if send is not None:
                intended = send.get("intended_us")
                intended = send["sent_us"] if intended is None else intended
                samples["e2e_intended"].append(line["received_us"] - intended)
                samples["e2e_actual"].append(line["received_us"] - send["sent_us"])
        samples["producer"] = [
            send["acked_us"] - send["sent_us"] for send in self.best.values() if _is_acked(send)
        ]
        late = sum(why != "superseded" for why in self.losses().values())
        return {
            name: _statistics(sorted(own), 0 if name == "producer" else late)
            for name, own in samples.items()
        }

    def ranges(self) -> dict[str, int | None]:
        appended = [
            line.get("append_us")
            for line in self.kinds["log"]
            if line["cluster"] == self.read
            and line["offset"] == min(self.found[self.read][message_of(line)])
        ]
        times = {
            "sent": [send["sent_us"] for send in self.best.values()],
            "published": [send["acked_us"] for send in self.best.values() if _is_acked(send)],
            "output": [at for at in appended if at is not None],
            "consumed": [line["received_us"] for line in self.arrivals()],
        }
        return {name: max(own) - min(own) if own else None for name, own in times.items()}


def _times(send: Line) -> list[Any]:
    """Return the sort key of a send: sent, acked, intended; an absent time comes first."""
    times = [send.get(name) for name in ("sent_us", "acked_us", "intended_us")]
    return [(time is not None, time) if time is not None else (False, 0) for time in times]


def _is_acked(send: Line) -> bool:
    return send.get("acked_us") is not None and send["outcome"] != "failed"


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _statistics(ordered: list[int], undelivered: int) -> dict[str, Any]:
    shares = {"p50": 5000, "p75": 7500, "p90": 9000, "p95": 9500}
    shares |= {"p99": 9900, "p99.9": 9990, "p99.99": 9999}
    result: dict[str, Any] = {name: _percentile(ordered, share) for name, share in shares.items()}
    if undelivered:
        never: list[Any] = [None] * undelivered
        result["undelivered"] = undelivered
        result["owed"] = {n: _percentile([*ordered, *never], share) for n, share in shares.items()}
    result["count"] = len(ordered)
    result["negative"] = sum(value < 0 for value in ordered)
    result["mean"] = _ratio(sum(ordered), len(ordered))
    result["max"] = ordered[-1] if ordered else None
    return result


def _percentile(ordered: list[Any], share: int) -> Any:
    """Return the smallest sample that at least `share` of ten thousand do not exceed."""
    total = len(ordered)
    return next((v for n, v in enumerate(ordered, 1) if 10_000 * n >= share * total), None)
