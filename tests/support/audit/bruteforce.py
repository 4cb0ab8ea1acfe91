"""An independent judge of about a page, straight from the definitions, in plain Python.

One group at a time; everything is a dictionary or a set; nothing is fast.
"""

from collections import Counter, defaultdict
from itertools import combinations, pairwise
from typing import Any

from support.audit.ledgers import History

Producer = tuple[str, int]  # id and incarnation
Message = tuple[Producer, str, int, int]  # producer, topic, lane, sequence
ORDER_OF_OUTCOMES = {0: 0, 2: 1, 1: 2}  # ok, unknown, failed


def name(row: dict[str, Any]) -> Message:
    return (*stream_of(row), row["sequence"])


def stream_of(row: dict[str, Any]) -> tuple[Producer, str, int]:
    return (row["producer"], row["incarnation"]), row["topic"], row["lane"]


class Judge:
    """What an audit should report about a group of a history."""

    def __init__(self, history: History, group: str) -> None:
        self.h, self.group = history, group
        self.ordered = history.promises.get("order", True)
        self.read = "target" if history.mirror else "source"
        scans = history.table("scans")
        self.scans = {
            (r["cluster"], r["topic"], r["partition"]): (r["start"], r["end"]) for r in scans
        }
        self.receipts = [r for r in history.table("receipts") if r["group"] == group]
        self.found: dict[str, dict[Message, set[Any]]] = {"source": {}, "target": {}}
        for row in history.table("log"):
            place = (row["partition"], row["offset"])
            self.found[row["cluster"]].setdefault(name(row), set()).add(place)
        self.known = {c: {m: set(p) for m, p in f.items()} for c, f in self.found.items()}
        self.to_anyone = {name(row) for row in history.table("receipts")}
        self.attempts = self.all_attempts()
        self.outcome = {m: a["outcome"] for m, a in self.attempts.items()}
        for row in history.table("attempts"):
            is_evidence = row["acked_us"] >= 0 or self.committed(name(row))
            if row["outcome"] != 1 and row["offset"] >= 0 and is_evidence:
                place = (self.home("source", name(row)), row["offset"])
                self.known["source"].setdefault(name(row), set()).add(place)
        for row in history.table("receipts"):
            place = (row["partition"], row["offset"])
            self.known[self.read].setdefault(name(row), set()).add(place)
        self.delivered = {name(row) for row in self.receipts}
        self.drained = {
            stream_of(c) for c in history.commits if c["kind"] == "drained" and c["group"] == group
        }

    def home(self, cluster: str, m: Message) -> int:
        partitions = self.h.partitions.get(m[1], 0) if cluster == "source" else 0
        return m[2] % partitions if partitions else m[2]

    def all_attempts(self) -> dict[Message, dict[str, Any]]:
        attempts: dict[Message, dict[str, Any]] = {}
        for row in self.h.table("attempts"):
            held = attempts.get(name(row))
            if (
                held is None
                or ORDER_OF_OUTCOMES[row["outcome"]] < ORDER_OF_OUTCOMES[held["outcome"]]
            ):
                attempts[name(row)] = row
        reserved: Counter[Any] = Counter()
        ended: Counter[Any] = Counter()
        for line in self.h.commits:
            if line["kind"] == "reserve":
                stream = stream_of(line)
                reserved[stream] = max(reserved[stream], line["until"])
        for row in self.h.table("manifests"):
            stream = stream_of(row)
            ended[stream] = max(ended[stream], row["count"])
        unknown = {"outcome": 2, "sent_us": -1, "intended_us": -1, "acked_us": -1}
        for stream in {*reserved, *ended}:
            for sequence in range(ended.get(stream, reserved[stream])):
                attempts.setdefault((*stream, sequence), unknown)
        for m in {*self.found["source"], *self.found["target"], *self.to_anyone}:
            if m[3] < max(reserved[m[:3]], ended[m[:3]]):
                attempts.setdefault(m, unknown)
        return attempts

    # ------------------------------------------------------------ loss

    def is_drained(self, m: Message) -> bool:
        return self.h.all_drained or m[:3] in self.drained

    def decides(self, cluster: str, m: Message, *, drained: bool) -> bool:
        """Whether a scan decides about offsets at or above its end."""
        return drained or (cluster == "source" and self.outcome.get(m) == 0)

    def committed(self, m: Message) -> bool:
        return self.outcome.get(m) == 0 or (self.outcome.get(m) == 2 and m in self.to_anyone)

    def losses(self) -> dict[Message, str]:
        everything = {*self.attempts, *self.found["source"], *self.found["target"]}
        in_log = self.found["source"].keys() | self.found["target"].keys()
        owed = {m for m in everything if self.committed(m) or m in in_log}
        return {m: self.why(m) for m in owed - self.delivered}

    def why(self, m: Message) -> str:
        drained, topic = self.is_drained(m), m[1]
        source = max(self.known["source"].get(m, ()), default=None)
        at, offset = source or (self.home("source", m), None)
        scan = self.scans.get(("source", topic, at))
        target_scan = self.scans.get(("target", topic, self.home("target", m)))
        read = max(self.known[self.read].get(m, ()), default=None)
        position = self.group_position(topic, read[0]) if read else None
        passed = read is not None and position is not None and read[1] < position
        later = self.ordered and any(d[:3] == m[:3] and d[3] > m[3] for d in self.delivered)
        mirror_at = self.mirror_position(topic, at)
        mirrored_past = offset is not None and mirror_at is not None and offset < mirror_at
        if m in self.found[self.read]:
            return "lost: undelivered" if drained or passed else "pending"
        expired = "lost: expired at target" if self.may_have_expired(m) else None
        if self.h.mirror and m in self.found["source"] and target_scan:
            absent = "lost: unlocated" if self.is_start_unclear(m) else "lost: not-mirrored"
            return (expired or absent) if drained or mirrored_past else "pending"
        if (
            scan
            and m not in self.found["source"]
            and (offset is None or offset < scan[1] or self.decides("source", m, drained=drained))
        ):
            if offset is None or offset >= scan[0]:
                return "lost: never-stored"
            return "lost: expired"
        if self.h.mirror and m not in self.found["source"] and target_scan:
            gone = drained or mirrored_past or (offset is None and later)
            return (expired or "lost: unlocated") if gone else "pending"
        if drained:
            return "lost: unlocated"
        if read:
            return "lost: unlocated" if passed else "pending"
        if self.h.mirror and offset is not None and mirror_at is not None and offset >= mirror_at:
            return "pending"
        return "lost: unlocated" if later else "pending"

    def group_position(self, topic: str, partition: int) -> int | None:
        for row in reversed(self.h.table("positions")):
            if (row["reader"], row["topic"], row["partition"]) == (self.group, topic, partition):
                return int(row["offset"])
        own = [
            r["offset"] for r in self.receipts if (r["topic"], r["partition"]) == (topic, partition)
        ]
        return max(own) + 1 if own else None

    def mirror_position(self, topic: str, partition: int) -> int | None:
        for row in reversed(self.h.table("positions")):
            if (row["reader"], row["topic"], row["partition"]) == ("mirror", topic, partition):
                return int(row["offset"])
        copied = [
            min(self.known["source"][m])
            for m in self.known["target"]
            if m in self.known["source"] and m[1] == topic
        ]
        own = [offset for at, offset in copied if at == partition]
        return max(own) + 1 if own and self.ordered else None

    def may_have_expired(self, m: Message) -> bool:
        if not self.h.mirror:
            return False
        lower = [n for n in self.known["target"] if n[:3] == m[:3] and n[3] < m[3]]
        if lower:
            at, offset = max(self.known["target"][max(lower, key=lambda n: n[3])])
            return bool(offset < self.scans.get(("target", m[1], at), (-1, -1))[0])
        log = (m[1], self.home("target", m))
        rows = [*self.h.table("receipts"), *self.h.table("assignments")]
        seen = [r["offset"] for r in rows if (r["topic"], r["partition"]) == log]
        return bool(seen) and min(seen) < self.scans.get(("target", *log), (0, 0))[0]

    def is_start_unclear(self, m: Message) -> bool:
        """Whether the message may have been below a start that consumers did not begin above."""
        log = (m[1], self.home("target", m))
        if self.scans.get(("target", *log), (0, 0))[0] == 0:
            return False
        below = [n for n in self.known["target"] if n[:3] == m[:3] and n[3] < m[3]]
        begun = [(r["topic"], r["partition"]) for r in self.h.table("assignments")]
        return not below and log not in begun

    def vanished(self) -> set[Message]:
        def shown(cluster: str, m: Message, place: Any) -> bool:
            at, offset = place or (self.home(cluster, m), None)
            scan = self.scans.get((cluster, m[1], at))
            if scan is None:
                return False
            if offset is None:
                places = [
                    p for n, known in self.known[cluster].items() if n[1] == m[1] for p in known
                ]
                own = [int(o) for p, o in places if p == at]
                follows = any(n[:3] == m[:3] and n[3] < m[3] for n in self.known[cluster])
                return scan[0] == 0 or (follows and int(scan[0]) <= min(own, default=int(scan[0])))
            decided = self.decides(cluster, m, drained=self.is_drained(m))
            return scan[0] <= offset and (offset < scan[1] or decided)

        gone = {
            name(r)
            for r in self.receipts
            if name(r) not in self.found[self.read]
            and shown(self.read, name(r), (r["partition"], r["offset"]))
        }
        if self.h.mirror:
            for m in {*self.found["target"], *self.delivered} - self.found["source"].keys():
                last = max(self.known["source"].get(m, ()), default=None)
                if self.outcome.get(m) in (0, 2) and shown("source", m, last):
                    gone.add(m)
        return gone

    # ------------------------------------------------------------ order

    def arrivals(self) -> dict[Any, list[int]]:
        """Sequences of each stream in order of first arrival."""
        streams: dict[Any, list[Any]] = defaultdict(list)
        for place, row in enumerate(self.h.table("receipts")):
            if row["group"] == self.group and name(row) in self.attempts:
                streams[name(row)[:3]].append((place, row))
        orders = {}
        for stream, rows in streams.items():
            first: dict[int, Any] = {}
            in_partition = sorted(rows, key=lambda item: (item[1]["assignment"], item[0]))
            for place, row in in_partition:
                first.setdefault(row["sequence"], []).append((place, row))
            chosen = []
            for copies in first.values():
                torn = len({row["partition"] for _, row in copies}) > 1
                chosen.append(min(copies, key=lambda c: c[1]["received_us"]) if torn else copies[0])
            torn = len({row["partition"] for _, row in chosen}) > 1
            chosen.sort(key=lambda item: (item[1]["assignment"], item[0]))
            if torn:
                chosen.sort(key=lambda item: item[1]["received_us"])
            orders[stream] = [row["sequence"] for _, row in chosen]
        return orders

    def log_orders(self, cluster: str) -> list[list[int]]:
        firsts: dict[Any, dict[int, int]] = defaultdict(dict)
        for m, places in self.known[cluster].items():
            for at, offset in sorted(places, reverse=True):
                if m in self.attempts and not self.is_shown_absent(cluster, m, (at, offset)):
                    firsts[m[:3], at][m[3]] = offset
        return [sorted(sorted(own), key=own.__getitem__) for own in firsts.values()]

    def is_shown_absent(self, cluster: str, m: Message, place: tuple[int, int]) -> bool:
        start, end = self.scans.get((cluster, m[1], place[0]), (place[1] + 1, 0))
        drained = self.h.all_drained or m[:3] in map(stream_of, self.drains())
        inside = place[1] < end or self.decides(cluster, m, drained=drained)
        return m not in self.found[cluster] and start <= place[1] and inside

    def drains(self) -> list[dict[str, Any]]:
        """Of any group that there is."""
        drains = [c for c in self.h.commits if c["kind"] == "drained"]
        return [c for c in drains if c["group"] in self.h.groups]

    # ------------------------------------------------------------ polls

    def polls(self) -> tuple[int, int]:
        chains: dict[Any, list[int]] = {}
        reader = ("consumer", "assignment", "topic", "partition")
        begins: dict[Any, int] = {}
        for row in self.h.table("assignments"):
            if row["group"] == self.group:
                reader_key = tuple(row[k] for k in reader)
                begins[reader_key] = max(row["offset"], begins.get(reader_key, 0))
        for row in self.receipts:
            chains.setdefault(tuple(row[k] for k in reader), []).append(row["offset"])
        skips = falls = 0
        for key, chain in chains.items():
            known = self.known_offsets(key[2], key[3])
            steps = list(pairwise(chain))
            if key in begins:
                steps.append((begins[key] - 1, chain[0]))
            falls += sum(b <= a for a, b in steps)
            skips += sum(any(a < o < b for o in known) for a, b in steps)
        return skips, falls

    def known_offsets(self, topic: str, partition: int) -> set[int]:
        scanned = (self.read, topic, partition) in self.scans
        held = (self.found if scanned else self.known)[self.read]
        return {
            o for m, places in held.items() if m[1] == topic for p, o in places if p == partition
        }

    def contested(self) -> int:
        held: dict[Any, set[Message]] = defaultdict(set)
        for cluster, known in self.known.items():
            for m, places in known.items():
                for place in places:
                    held[cluster, m[1], place].add(m)
        return sum(len(messages) > 1 for messages in held.values())

    def reused(self) -> int:
        """Messages with two different acknowledged attempts."""
        acked: dict[Message, set[Any]] = defaultdict(set)
        for row in self.h.table("attempts"):
            if row["outcome"] == 0:
                acked[name(row)].add((row["offset"], row["sent_us"], row["acked_us"]))
        return sum(any(differ(a, b) for a, b in combinations(own, 2)) for own in acked.values())

    # ------------------------------------------------------------ all together

    def findings(self) -> dict[str, int]:
        losses = self.losses()
        counts = Counter(losses.values())
        highest: dict[Any, int] = {}
        for m in self.delivered:
            highest[m[:3]] = max(m[3], highest.get(m[:3], -1))
        lost = [m for m, why in losses.items() if why != "pending"]
        counts["tail loss"] = sum(m[3] > highest.get(m[:3], -1) for m in lost)
        counts["vanished"] = len(self.vanished())
        for cluster, known in self.known.items():
            if cluster == "source" or self.h.mirror:
                counts[f"duplicate: {cluster}"] = sum(len(p) - 1 for p in known.values())
                counts[f"reordered: {cluster}"] = sum(map(late, self.log_orders(cluster)))
        counts["reordered"] = sum(map(late, self.arrivals().values()))
        counts["inconsistent offset"] = self.contested()
        counts["reused sequence"] = self.reused()
        counts["aborted read"] = sum(self.outcome.get(m) == 1 for m in self.delivered)
        counts["unexpected"] = sum(m not in self.attempts for m in self.delivered)
        counts["poll skip"], counts["non-monotonic poll"] = self.polls()
        broken = {name(r) for r in [*self.receipts, *self.h.table("log")] if not r["intact"]}
        counts["corrupted"] = len(broken)
        return {finding: count for finding, count in counts.items() if count}

    def metrics(self) -> dict[str, Any]:
        outcomes = Counter(self.outcome.values())
        distinct = {(name(r), r["partition"], r["offset"]) for r in self.receipts}
        orders = self.arrivals().values()
        return {
            "attempts": len(self.attempts),
            "ok": outcomes[0],
            "failed": outcomes[1],
            "unknown": outcomes[2],
            "deliveries": len(self.receipts),
            "delivered": len(self.delivered),
            "delivered_attempts": len(self.delivered & self.attempts.keys()),
            "delivered_ok": sum(self.outcome.get(m) == 0 for m in self.delivered),
            "re_reads": len(self.receipts) - len(distinct),
            "recovered": sum(self.outcome.get(m) == 2 for m in self.delivered),
            "F": sum(map(footrule, orders)),
            "K": sum(sum(a > b for a, b in combinations(order, 2)) for order in orders),
        }


def differ(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """In something that both say."""
    return any(a != b for a, b in zip(one, other, strict=True) if -1 not in (a, b))


def footrule(order: list[int]) -> int:
    return sum(abs(sorted(order).index(sequence) - place) for place, sequence in enumerate(order))


def late(order: list[int]) -> int:
    return sum(any(before > sequence for before in order[:n]) for n, sequence in enumerate(order))
