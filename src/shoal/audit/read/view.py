"""The rows of one cell, arranged by message.

Everything here is a plain rearrangement of what the ledgers say: which slot each row is
about, what producers said, where messages were, what each group received. Judgement
comes after, in `cell`.
"""

from functools import cached_property

import numpy as np

from shoal.audit.arrays import NONE, Array, Bools, Ints, Rows, ints, joined
from shoal.audit.context import Cluster, Extent, Setting
from shoal.audit.read.evidence import (
    NEVER,
    Attempts,
    Deliveries,
    Memberships,
    Places,
    arrival_keys,
    gather_attempts,
    gather_deliveries,
    gather_memberships,
    gather_places,
    pack_places,
    partition_of,
)
from shoal.audit.read.index import build_index
from shoal.audit.read.read import POSITION, PRODUCER_NUMBER, Vocabulary, Within, read_rows
from shoal.audit.rules.absence import is_shown_absent
from shoal.audit.rules.order import Units
from shoal.audit.rules.outcomes import apply_fates, is_refused, is_unproven_offset
from shoal.audit.tasks import MessageCell
from shoal.audit.times.segments import segments_of
from shoal.model.errors import LedgerError
from shoal.model.ledger import COMMITTED, FAILED, FATES, OK, OUTCOMES, UNKNOWN

_STREAM = (PRODUCER_NUMBER, "topic", "lane", "sequence")
_ATTEMPTS = (*_STREAM, "outcome", "error", "offset", "intended_us", "sent_us", "acked_us")
_RECEIPTS = (*_STREAM, "group", "assignment", "partition", "offset", "received_us", "intact")
_LOG = (*_STREAM, "cluster", "partition", "offset", "append_us", "intact")
_KEYS = (*_STREAM, "key")
_TRANSACTIONS = (*_STREAM, "transaction", "fate", "requested_us")
_BATCHES = (
    *(*_STREAM, "cluster", "partition", "offset", "records", "codec", "records_check"),
    *("base_timestamp_us", "max_timestamp_us", "stamped"),
)

_NO_EXTENT = Extent(0, 0)


class CellView:
    """One cell, read."""

    def __init__(self, cell: MessageCell, setting: Setting) -> None:
        self.cell, self.setting = cell, setting
        self.words = Vocabulary()
        within = Within("sequence", ((cell.low, cell.high),))
        self.attempt_rows = self._read("attempts", _ATTEMPTS, within)
        receipts = self._read("receipts", (*_RECEIPTS, POSITION), within)
        log = self._read("log", _LOG, within)
        self.unreadable_receipts, self.receipts = self._part(receipts)
        self.unreadable_log, self.log = self._part(log)
        self._key_rows = self._read("keys", _KEYS, within)
        self._transaction_rows = self._read("transactions", _TRANSACTIONS, within)
        extents = {
            stream: min(extent.planned, cell.high)
            for stream, extent in setting.extents.items()
            if extent.planned > cell.low >= 0
        }
        self.batches = self._read("batches", _BATCHES, within)
        side_tables = (self._key_rows, self._transaction_rows, self.batches)
        tables = (self.attempt_rows, self.receipts, self.log, *side_tables)
        self.index, slots = build_index(tables, self.words, low=cell.low, extents=extents)
        self.attempt_slots, self.receipt_slots, self.log_slots, *side_slots = slots
        self._key_slots, self._transaction_slots, self.batch_slots = side_slots
        self.receipts["place"] = pack_places(self.receipts["partition"], self.receipts["offset"])
        self.receipts["key"] = arrival_keys(self.receipts["assignment"], self.receipts[POSITION])

    def _read(self, table: str, columns: tuple[str, ...], within: Within) -> Rows:
        pieces = getattr(self.cell, table)
        return read_rows(table, pieces, columns, vocabulary=self.words, within=within)

    def _part(self, rows: Rows) -> tuple[Rows, Rows]:
        """Records whose identity cannot be read, which are no message's; and all others."""
        if self.cell.low >= 0:  # they have the sequence -1
            return {name: column[:0] for name, column in rows.items()}, rows
        lost = self._is_unreadable(rows)
        return (
            {name: column[lost] for name, column in rows.items()},
            {name: column[~lost] for name, column in rows.items()},
        )

    def _is_unreadable(self, rows: Rows) -> Bools:
        found: Bools = (
            (rows[PRODUCER_NUMBER] == self.words.producer_code(""))
            & (rows["lane"] == NONE)
            & (rows["sequence"] == NONE)
        )
        return found

    def readable(self, rows: Rows) -> Rows:
        """Rows of the log, read once more, as `log` has them."""
        return self._part(rows)[1]

    @property
    def size(self) -> int:
        return self.index.size

    # ------------------------------------------------------------ producers

    @cached_property
    def attempts(self) -> Attempts:
        outcome = self.attempt_rows["outcome"]
        if len(outcome) and not 0 <= int(outcome.min()) <= int(outcome.max()) < len(OUTCOMES):
            raise LedgerError("a ledger of attempts holds an outcome that is none")
        return gather_attempts(self._reported_rows, self.attempt_slots, self.size)

    @cached_property
    def _reported_rows(self) -> Rows:
        """The rows of attempts; with acks=0 none of them is acknowledged."""
        rows, outcome = self.attempt_rows, self.attempt_rows["outcome"]
        if self.setting.acknowledged:
            return rows
        return {**rows, "outcome": np.where(outcome == OK, UNKNOWN, outcome)}

    @cached_property
    def outcome(self) -> Array:
        """The outcome of each slot; reserved numbers without a record are unknown attempts."""
        outcome = self.attempts.outcome.copy()
        planned = self.index.first_slots(self.extents("planned"))
        outcome[planned[outcome[planned] == NEVER]] = UNKNOWN
        seen = self.in_source | self.in_target | self.delivered_to_anyone
        stray = np.flatnonzero(seen & (outcome == NEVER))
        reserved = self.extents("reserved")[self.index.stream_of(stray)]
        outcome[stray[(self.index.sequence_of(stray) < reserved) & (reserved > 0)]] = UNKNOWN
        if self.memberships is not None:
            apply_fates(outcome, self.attempts.outcome, self.memberships)
        return outcome

    @cached_property
    def refused(self) -> Bools:
        """Which slots the client itself reported as failed."""
        rows, by_error = self.attempt_rows, np.ones(self.size, dtype=np.bool_)
        if not self.setting.is_history:
            by_error = self._marked(self.attempt_slots[rows["error"] != 0])
        return is_refused(self.attempts.outcome, self.memberships, by_error)

    @cached_property
    def is_acknowledged(self) -> Bools:
        """Which slots were acknowledged, or belong to a transaction whose commit was."""
        found: Bools = (self.outcome == OK) | (self.attempts.outcome == OK)
        return found

    @cached_property
    def memberships(self) -> Memberships | None:
        """The transaction of each slot; None where no attempt was made in one."""
        rows = self._transaction_rows
        if not len(rows["sequence"]):
            return None
        if not 0 <= int(rows["fate"].min()) <= int(rows["fate"].max()) < len(FATES):
            raise LedgerError("a ledger of transactions holds a fate that is none")
        return gather_memberships(rows, self._transaction_slots, self.size)

    @cached_property
    def hidden(self) -> Bools:
        """Which slots belong to transactions that were aborted or are open."""
        members = self.memberships
        if members is None:
            return np.zeros(self.size, dtype=np.bool_)
        found: Bools = (members.transaction != NONE) & (members.fate != COMMITTED)
        return found

    @cached_property
    def key(self) -> Ints:
        """The key of each slot, where `key_known` says that there is one; the first row counts.

        A message of ours that has no row has the key of its lane.
        """
        lanes = ints([stream.lane for stream in self.index.streams])
        found = lanes[self.index.stream_of(np.arange(self.size))]
        found[self._key_slots[::-1]] = self._key_rows["key"][::-1]
        return found

    @cached_property
    def key_known(self) -> Bools:
        if not self.setting.is_history:
            return np.ones(self.size, dtype=np.bool_)
        return self._marked(self._key_slots)

    def extents(self, kind: str) -> Ints:
        """`planned` or `reserved` of each stream; numbers below 0 are no attempt's."""
        known = self.setting.extents if self.cell.low >= 0 else {}
        return np.array(
            [getattr(known.get(stream, _NO_EXTENT), kind) for stream in self.index.streams],
            dtype=np.int64,
        )

    @cached_property
    def segment(self) -> Ints:
        """Between which edges of faults each slot was meant to leave; NONE if nobody knows."""
        return segments_of(self.attempts.intended_us, self.setting.edges_us)

    def segments(self, slots: Ints) -> Ints:
        """The same of some slots; without faults all are in one, at no cost."""
        if not self.setting.edges_us:
            return segments_of(slots, ())
        return self.segment[slots]

    # ------------------------------------------------------------ logs

    def _scan(self, cluster: Cluster) -> tuple[Ints, Ints]:
        """Slots and places of what a scan of the cluster found."""
        own = self.log["cluster"] == self.words.code(cluster)
        places = pack_places(self.log["partition"][own], self.log["offset"][own])
        return self.log_slots[own], places

    @cached_property
    def source_scan(self) -> tuple[Ints, Ints]:
        return self._scan("source")

    @cached_property
    def target_scan(self) -> tuple[Ints, Ints]:
        return self._scan("target")

    @cached_property
    def acknowledged(self) -> tuple[Ints, Ints]:
        """Slots and source places that producers named, as far as they are evidence."""
        rows = self.attempt_rows
        own = (rows["offset"] != NONE) & (rows["outcome"] != FAILED) & ~self._is_unproven
        return self._source_places_of(own)

    def _source_places_of(self, own: Bools) -> tuple[Ints, Ints]:
        slots = self.attempt_slots[own]
        homes = [self.setting.source_partition(s.topic, s.lane) for s in self.index.streams]
        partition = np.array(homes, dtype=np.int64)[self.index.stream_of(slots)]
        return slots, pack_places(partition, self.attempt_rows["offset"][own])

    @cached_property
    def _is_unproven(self) -> Bools:
        """Which rows of attempts name an offset that is no evidence."""
        rows = self.attempt_rows
        if not ((rows["acked_us"] == NONE) & (rows["offset"] != NONE)).any():
            return np.zeros(len(rows["offset"]), dtype=np.bool_)  # as in every run of ours
        committed, members = self.delivered_to_anyone, self.memberships
        if members is not None and self.setting.delivered_transactions is not None:
            seen = self.setting.delivered_transactions
            committed = committed | np.isin(members.transaction, seen)
        slots = self.attempt_slots
        return is_unproven_offset(self._reported_rows, self.outcome[slots], committed[slots])

    @cached_property
    def unproven(self) -> tuple[Ints, Ints]:
        """Slots and source places that only such rows name."""
        slots, places = self._source_places_of(self._is_unproven)
        if not len(slots):
            return slots, places
        proven = set(zip(*(column.tolist() for column in self.acknowledged), strict=True))
        pairs = sorted({*zip(slots.tolist(), places.tolist(), strict=True)} - proven)
        return ints([slot for slot, _ in pairs]), ints([place for _, place in pairs])

    @property
    def is_unsettled(self) -> bool:
        """Whether offsets become evidence if other cells saw the transactions of their attempts."""
        members = self.memberships
        if members is None or self.setting.delivered_transactions is not None:
            return False
        slots = self.unproven[0]
        is_open = (self.outcome[slots] == UNKNOWN) & (members.transaction[slots] != NONE)
        return bool(is_open.any()) and len(self.setting.uncommitted) < len(self.setting.groups)

    @property
    def received(self) -> tuple[Ints, Ints]:
        """Slots and places in the log that consumers read, of all groups."""
        return self.receipt_slots, self.receipts["place"]

    def hearsay(self, cluster: Cluster) -> list[tuple[Ints, Ints]]:
        """Evidence about a cluster's logs besides its scan."""
        told = [self.acknowledged] if cluster == "source" else []
        return [*told, self.received] if cluster == self.setting.read_cluster else told

    def _places(self, cluster: Cluster) -> Places:
        scan = self.source_scan if cluster == "source" else self.target_scan
        evidence = [scan, *self.hearsay(cluster)]
        slots, places = (joined([e[i] for e in evidence]) for i in (0, 1))
        return gather_places(slots, places, self.size)

    @cached_property
    def source_places(self) -> Places:
        return self._places("source")

    @cached_property
    def target_places(self) -> Places:
        return self._places("target")

    @cached_property
    def source_first(self) -> Ints:
        """The lowest known place of each slot in the source, or NONE."""
        return self.source_places.first(self.size)

    @cached_property
    def source_last(self) -> Ints:
        return self.source_places.last(self.size)

    @cached_property
    def target_last(self) -> Ints:
        return self.target_places.last(self.size)

    def _marked(self, slots: Ints) -> Bools:
        marks = np.zeros(self.size, dtype=np.bool_)
        marks[slots] = True
        return marks

    @cached_property
    def in_source(self) -> Bools:
        return self._marked(self.source_scan[0])

    @cached_property
    def in_target(self) -> Bools:
        return self._marked(self.target_scan[0])

    @property
    def in_read_log(self) -> Bools:
        return self.in_target if self.setting.has_mirror else self.in_source

    @cached_property
    def broken_in_source(self) -> Bools:
        return self._broken("source")

    @cached_property
    def broken_in_target(self) -> Bools:
        return self._broken("target")

    def _broken(self, cluster: Cluster) -> Bools:
        own = (self.log["cluster"] == self.words.code(cluster)) & ~self.log["intact"]
        return self._marked(self.log_slots[own])

    # ------------------------------------------------------------ consumers

    @cached_property
    def delivered_to_anyone(self) -> Bools:
        return self._marked(self.receipt_slots)

    def deliveries(self, group: str) -> Deliveries:
        rows = np.flatnonzero(self.receipts["group"] == self.words.code(group))
        return gather_deliveries(self.receipts, self.receipt_slots, rows, self.size)

    # ------------------------------------------------------------ order

    def arrival_slots(self, deliveries: Deliveries) -> Ints:
        """What a group received and somebody attempted to send: only that has an order."""
        return np.flatnonzero(deliveries.delivered & (self.outcome != NEVER))

    def arrival_units(self, deliveries: Deliveries) -> Units:
        """What a group received, by stream; keys are arrival."""
        slots = self.arrival_slots(deliveries)
        rows = deliveries.first[slots]
        stream = self.index.stream_of(slots)
        return Units(
            stream,
            stream,
            self.index.sequence_of(slots),
            self.receipts["key"][rows],
            self.receipts["partition"][rows].astype(np.int64),
            self.segments(slots),
        )

    def _ordered_places(self, cluster: Cluster) -> Places:
        """Places that have an order: of attempts, and not where a scan shows nothing."""
        known = self.source_places if cluster == "source" else self.target_places
        in_log = self.in_source if cluster == "source" else self.in_target
        if len(known.slots) == np.count_nonzero(in_log & (self.outcome != NEVER)):
            return known  # all are attempts, each at the one place where the scan found it
        kept = self.outcome[known.slots] != NEVER
        absent = np.flatnonzero(~in_log[known.slots])
        slots = known.slots[absent]
        setting = self.setting
        kept[absent] &= ~is_shown_absent(
            setting,
            cluster,
            (self.index.streams, self.index.stream_of(slots), known.places[absent]),
            acknowledged=self.is_acknowledged[slots],
            is_drained=lambda stream: any(setting.is_drained(g, stream) for g in setting.groups),
        )
        return known if kept.all() else Places(known.slots[kept], known.places[kept])

    def log_units(self, cluster: Cluster) -> Units:
        """What is in the logs of a cluster, by stream and partition; keys are first offsets."""
        known = self._ordered_places(cluster)
        partition = partition_of(known.places)
        slots = known.slots
        fresh = np.ones(len(slots), dtype=np.bool_)
        fresh[1:] = (slots[1:] != slots[:-1]) | (partition[1:] != partition[:-1])
        slots, partition, places = slots[fresh], partition[fresh], known.places[fresh]
        stream = self.index.stream_of(slots)
        sequence, segment = self.index.sequence_of(slots), self.segments(slots)
        if _is_torn(stream, partition):
            order = np.lexsort((sequence, partition, stream))
            stream, sequence = stream[order], sequence[order]
            partition, places, segment = partition[order], places[order], segment[order]
        span = int(partition.max(initial=0)) + 1
        return Units(stream * span + partition, stream, sequence, places, partition, segment)


def _is_torn(stream: Array, partition: Array) -> bool:
    """Whether neighbours of one stream lie in different partitions."""
    return bool(((stream[1:] == stream[:-1]) & (partition[1:] != partition[:-1])).any())
