"""The rows of one cell, arranged by message.

This module only rearranges what the ledgers record: the slot of each row, what producers reported,
where messages were, what each group received. `rules.cell` judges.
"""

from functools import cached_property

import numpy as np

from shoal.audit.arrays import NONE, Array, Bools, Ints, Rows, ints, is_repeated_value
from shoal.audit.context import AuditContext, Cluster, Extent
from shoal.audit.read.buckets import ALL_BUCKETS, bucket_of_rows
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
from shoal.audit.read.read import PRODUCER_NUMBER, Vocabulary, Within, read_rows
from shoal.audit.rules.absence import is_shown_absent
from shoal.audit.rules.order import Units
from shoal.audit.rules.outcomes import apply_fates, is_refused, is_unproven_offset
from shoal.audit.tasks import MessageCell
from shoal.audit.times.segments import segments_of
from shoal.model.errors import LedgerError
from shoal.model.ledger import COMMITTED, FAILED, FATES, OK, OUTCOMES, POSITION, UNKNOWN

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
    """The rows of one cell and what follows from them, computed on demand."""

    def __init__(self, cell: MessageCell, context: AuditContext) -> None:
        self.cell, self.context = cell, context
        self.words = Vocabulary()
        within = Within("sequence", ((cell.low, cell.high),))
        self.attempt_rows = self.read_rows("attempts", _ATTEMPTS, within)
        receipts = self.read_rows("receipts", (*_RECEIPTS, POSITION), within)
        log = self.read_rows("log", _LOG, within)
        self.unreadable_receipts, self.receipts = self._split_unreadable(receipts)
        self.unreadable_log, self.log = self._split_unreadable(log)
        self._key_rows = self.read_rows("keys", _KEYS, within)
        self._transaction_rows = self.read_rows("transactions", _TRANSACTIONS, within)
        extents = {
            stream: min(extent.planned, cell.high)
            for stream, extent in context.extents_in(cell.buckets).items()
            if extent.planned > cell.low >= 0
        }
        self.batches = self.read_rows("batches", _BATCHES, within)
        side_tables = (self._key_rows, self._transaction_rows, self.batches)
        tables = (self.attempt_rows, self.receipts, self.log, *side_tables)
        self.index, slots = build_index(tables, self.words, low=cell.low, extents=extents)
        self.attempt_slots, self.receipt_slots, self.log_slots, *side_slots = slots
        self._key_slots, self._transaction_slots, self.batch_slots = side_slots
        self.receipts["place"] = pack_places(self.receipts["partition"], self.receipts["offset"])
        self.receipts["key"] = arrival_keys(self.receipts["assignment"], self.receipts[POSITION])

    def read_rows(self, table: str, columns: tuple[str, ...], within: Within) -> Rows:
        """Read the rows of this cell from a table, in ledger order."""
        pieces = getattr(self.cell, table)
        rows = read_rows(table, pieces, columns, vocabulary=self.words, within=within)
        if self.cell.buckets == ALL_BUCKETS:
            return rows
        low, high = self.cell.buckets
        buckets = bucket_of_rows(rows, self.words, self.context.source_partitions)
        kept = np.flatnonzero((buckets >= low) & (buckets < high))
        if len(kept) == len(buckets):
            return rows
        return {name: column[kept] for name, column in rows.items()}

    def _split_unreadable(self, rows: Rows) -> tuple[Rows, Rows]:
        """Split rows into records with an unreadable identity, and messages."""
        if self.cell.low >= 0:  # unreadable records have the sequence -1
            return {name: column[:0] for name, column in rows.items()}, rows
        unreadable = self._is_unreadable(rows)
        return (
            {name: column[unreadable] for name, column in rows.items()},
            {name: column[~unreadable] for name, column in rows.items()},
        )

    def _is_unreadable(self, rows: Rows) -> Bools:
        found: Bools = (
            (rows[PRODUCER_NUMBER] == self.words.producer_code(""))
            & (rows["lane"] == NONE)
            & (rows["sequence"] == NONE)
        )
        return found

    def readable(self, rows: Rows) -> Rows:
        """Return re-read rows of the log without unreadable records, in the order of `log`."""
        return self._split_unreadable(rows)[1]

    @property
    def size(self) -> int:
        return self.index.size

    # ------------------------------------------------------------ producers

    @cached_property
    def attempts(self) -> Attempts:
        outcome = self.attempt_rows["outcome"]
        if len(outcome) and not 0 <= int(outcome.min()) <= int(outcome.max()) < len(OUTCOMES):
            raise LedgerError("a ledger of attempts contains an unknown outcome")
        return gather_attempts(self._reported_rows, self.attempt_slots, self.size)

    @cached_property
    def _reported_rows(self) -> Rows:
        """The rows of attempts; with acks=0 the outcome `ok` becomes `unknown`."""
        rows, outcome = self.attempt_rows, self.attempt_rows["outcome"]
        if self.context.acknowledged:
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
        if not (self.attempts.outcome == FAILED).any():
            return np.zeros(self.size, dtype=np.bool_)
        rows, by_error = self.attempt_rows, np.ones(self.size, dtype=np.bool_)
        if not self.context.is_history:
            by_error = self._mark(self.attempt_slots[rows["error"] != 0])
        return is_refused(self.attempts.outcome, self.memberships, by_error)

    @cached_property
    def is_acknowledged(self) -> Bools:
        """Which slots were acknowledged themselves or by the commit of their transaction."""
        found: Bools = (self.outcome == OK) | (self.attempts.outcome == OK)
        return found

    @cached_property
    def memberships(self) -> Memberships | None:
        """The transaction of each slot; None if the cell has no transactions."""
        rows = self._transaction_rows
        if not len(rows["sequence"]):
            return None
        if not 0 <= int(rows["fate"].min()) <= int(rows["fate"].max()) < len(FATES):
            raise LedgerError("a ledger of transactions contains an unknown fate")
        return gather_memberships(rows, self._transaction_slots, self.size)

    @cached_property
    def hidden(self) -> Bools:
        """Which slots belong to aborted or open transactions."""
        members = self.memberships
        if members is None:
            return np.zeros(self.size, dtype=np.bool_)
        found: Bools = (members.transaction != NONE) & (members.fate != COMMITTED)
        return found

    @cached_property
    def key(self) -> Ints:
        """The key of each slot, valid where `key_known`; of several rows the first counts.

        A message of a Shoal producer without a row has the key of its lane.
        """
        lanes = ints([stream.lane for stream in self.index.streams])
        found = lanes[self.index.stream_of(np.arange(self.size))]
        found[self._key_slots[::-1]] = self._key_rows["key"][::-1]
        return found

    @cached_property
    def key_known(self) -> Bools:
        """Which slots have a known key: in a history of another tool, those with a row."""
        if not self.context.is_history:
            return np.ones(self.size, dtype=np.bool_)
        return self._mark(self._key_slots)

    def extents(self, kind: str) -> Ints:
        """Return `planned` or `reserved` of each stream; sequences below 0 are not attempts."""
        known = self.context.extents if self.cell.low >= 0 else {}
        return np.array(
            [getattr(known.get(stream, _NO_EXTENT), kind) for stream in self.index.streams],
            dtype=np.int64,
        )

    @cached_property
    def segment(self) -> Ints:
        """The segment of time of the intended send of each slot; NONE if it is unknown."""
        return segments_of(self.attempts.intended_us, self.context.edges_us)

    def segments(self, slots: Ints) -> Ints:
        """Return the segments of some slots; cheap without faults, as there is only one."""
        if not self.context.edges_us:
            return segments_of(slots, ())
        return self.segment[slots]

    # ------------------------------------------------------------ logs

    def _scan(self, cluster: Cluster) -> tuple[Ints, Ints]:
        """Return the slots and places that a scan of the cluster found."""
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
        """Slots and source places that producers reported and that are evidence."""
        rows = self.attempt_rows
        own = (rows["offset"] != NONE) & (rows["outcome"] != FAILED) & ~self._is_unproven
        return self._source_places_of(own)

    def _source_places_of(self, own: Bools) -> tuple[Ints, Ints]:
        slots = self.attempt_slots[own]
        homes = [self.context.source_partition(s.topic, s.lane) for s in self.index.streams]
        partition = np.array(homes, dtype=np.int64)[self.index.stream_of(slots)]
        return slots, pack_places(partition, self.attempt_rows["offset"][own])

    @cached_property
    def _is_unproven(self) -> Bools:
        """Which rows of attempts have an offset that is not evidence."""
        rows = self.attempt_rows
        if not ((rows["acked_us"] == NONE) & (rows["offset"] != NONE)).any():
            return np.zeros(
                len(rows["offset"]), dtype=np.bool_
            )  # usual: Shoal producers record no offset without an answer
        committed, members = self.delivered_to_anyone, self.memberships
        if members is not None and self.context.delivered_transactions is not None:
            seen = self.context.delivered_transactions
            committed = committed | np.isin(members.transaction, seen)
        slots = self.attempt_slots
        return is_unproven_offset(self._reported_rows, self.outcome[slots], committed[slots])

    @cached_property
    def unproven(self) -> tuple[Ints, Ints]:
        """Slots and source places that only unproven rows have."""
        slots, places = self._source_places_of(self._is_unproven)
        if not len(slots):
            return slots, places
        proven = set(zip(*(column.tolist() for column in self.acknowledged), strict=True))
        pairs = sorted({*zip(slots.tolist(), places.tolist(), strict=True)} - proven)
        return ints([slot for slot, _ in pairs]), ints([place for _, place in pairs])

    @property
    def doubtful_transactions(self) -> Ints:
        """The transactions that make offsets evidence if other cells saw them."""
        members = self.memberships
        is_known = self.context.delivered_transactions is not None
        if members is None or is_known or len(self.context.uncommitted) >= len(self.context.groups):
            return ints()
        slots = self.unproven[0]
        found: Ints = members.transaction[slots[self.outcome[slots] == UNKNOWN]]
        return found

    @property
    def received(self) -> tuple[Ints, Ints]:
        """Slots and places that consumers of all groups received, in the log that they read."""
        return self.receipt_slots, self.receipts["place"]

    def indirect_evidence(self, cluster: Cluster) -> list[tuple[Ints, Ints]]:
        """Return evidence about the logs of a cluster that is not from its scan."""
        found = [self.acknowledged] if cluster == "source" else []
        return [*found, self.received] if cluster == self.context.read_cluster else found

    def _places(self, cluster: Cluster) -> Places:
        scan = self.source_scan if cluster == "source" else self.target_scan
        return gather_places([scan, *self.indirect_evidence(cluster)], self.size)

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

    def _mark(self, slots: Ints) -> Bools:
        marks = np.zeros(self.size, dtype=np.bool_)
        marks[slots] = True
        return marks

    @cached_property
    def in_source(self) -> Bools:
        """Which messages the scan of the source found."""
        return self._mark(self.source_scan[0])

    @cached_property
    def in_target(self) -> Bools:
        """Which messages the scan of the target found."""
        return self._mark(self.target_scan[0])

    @cached_property
    def reached_source(self) -> Bools:
        """Which messages were in the source: the scan has them, or they came further.

        Without a scan of the source, every known place counts.
        """
        if not self.context.has_scans_of("source"):
            known: Bools = self.source_first != NONE
            return known
        passed = self.in_target | self.delivered_to_anyone
        reached: Bools = self.in_source | (passed & (self.attempts.outcome != NEVER))
        return reached

    @cached_property
    def reached_target(self) -> Bools:
        """Which messages were in the target: the scan has them, or a consumer received them."""
        if not self.context.has_mirror:
            return np.zeros(self.size, dtype=np.bool_)
        return self.in_target | self.delivered_to_anyone

    @property
    def in_read_log(self) -> Bools:
        return self.in_target if self.context.has_mirror else self.in_source

    @cached_property
    def broken_in_source(self) -> Bools:
        return self._broken("source")

    @cached_property
    def broken_in_target(self) -> Bools:
        return self._broken("target")

    def _broken(self, cluster: Cluster) -> Bools:
        intact = self.log["intact"]
        if not len(intact) or (is_repeated_value(intact) and intact[0]):
            return np.zeros(self.size, dtype=np.bool_)
        own = (self.log["cluster"] == self.words.code(cluster)) & ~intact
        return self._mark(self.log_slots[own])

    # ------------------------------------------------------------ consumers

    @cached_property
    def delivered_to_anyone(self) -> Bools:
        return self._mark(self.receipt_slots)

    def deliveries(self, group: str) -> Deliveries:
        groups = self.receipts["group"]
        rows = np.flatnonzero(groups == self.words.code(group))
        return gather_deliveries(self.receipts, self.receipt_slots, rows, self.size)

    # ------------------------------------------------------------ order

    def arrival_slots(self, deliveries: Deliveries) -> Ints:
        """Return the attempts that a group received: only attempts have an order."""
        return np.flatnonzero(deliveries.delivered & (self.outcome != NEVER))

    def arrival_units(self, deliveries: Deliveries) -> Units:
        """Return what a group received as units by stream; keys are arrival."""
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
            slots,
        )

    def _places_with_order(self, cluster: Cluster) -> Places:
        """Return the places that have an order: of attempts that no scan shows absent."""
        known = self.source_places if cluster == "source" else self.target_places
        in_log = self.in_source if cluster == "source" else self.in_target
        if len(known.slots) == np.count_nonzero(in_log & (self.outcome != NEVER)):
            return known  # all are attempts, each at one place, found by the scan
        kept = self.outcome[known.slots] != NEVER
        absent = np.flatnonzero(~in_log[known.slots])
        slots = known.slots[absent]
        context = self.context
        kept[absent] &= ~is_shown_absent(
            context,
            cluster,
            (self.index.streams, self.index.stream_of(slots), known.places[absent]),
            acknowledged=self.is_acknowledged[slots],
            is_drained=lambda stream: any(context.is_drained(g, stream) for g in context.groups),
        )
        return known if kept.all() else Places(known.slots[kept], known.places[kept])

    def log_units(self, cluster: Cluster) -> Units:
        """Return the logs of a cluster as units by stream and partition; keys are first offsets."""
        known = self._places_with_order(cluster)
        partition = partition_of(known.places)
        slots = known.slots
        fresh = np.ones(len(slots), dtype=np.bool_)
        fresh[1:] = (slots[1:] != slots[:-1]) | (partition[1:] != partition[:-1])
        slots, partition, places = slots[fresh], partition[fresh], known.places[fresh]
        stream = self.index.stream_of(slots)
        sequence, segment = self.index.sequence_of(slots), self.segments(slots)
        if _is_in_several_partitions(stream, partition):
            order = np.lexsort((sequence, partition, stream))
            stream, sequence = stream[order], sequence[order]
            partition, places, segment = partition[order], places[order], segment[order]
            slots = slots[order]
        span = int(partition.max(initial=0)) + 1
        return Units(stream * span + partition, stream, sequence, places, partition, segment, slots)


def _is_in_several_partitions(stream: Array, partition: Array) -> bool:
    """Whether neighbours of one stream are in different partitions."""
    return bool(((stream[1:] == stream[:-1]) & (partition[1:] != partition[:-1])).any())
