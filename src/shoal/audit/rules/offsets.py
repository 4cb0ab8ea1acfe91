"""Which message was at each offset: offsets with two messages, and jumps over known messages.

Only some ranges are examined: where indirect evidence has a message at an offset at which the scan
does not, where a log was not scanned or not scanned in ascending order, and where a reader jumped.
`audit` finds those ranges.
"""

import numpy as np

from shoal.audit.arrays import NONE, Array, Bools, Ints, Rows, concat_ints, ints
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.evidence import offset_of, pack_places
from shoal.audit.read.read import PRODUCER_NUMBER, Vocabulary, Within, read_rows
from shoal.audit.read.walk import number_rows
from shoal.audit.tasks import OffsetCell
from shoal.model.ledger import COMMITTED, FAILED, OPEN

_COLUMNS = ("topic", "offset", PRODUCER_NUMBER, "lane", "sequence")
_MESSAGE = (PRODUCER_NUMBER, "topic", "lane", "sequence")
_FACTOR = np.int64(0x27D4EB2F165667C5)


def check_offsets(task: OffsetCell, context: AuditContext) -> list[TaskPart]:
    words = Vocabulary()
    evidence = _read(task, context, words)
    names = ("topic", "partition", PRODUCER_NUMBER, "lane", "sequence", "offset")
    rows = {name: concat_ints([table[name] for table in evidence]) for name in names}
    is_scan = np.repeat(
        [True, *(False for _ in evidence[1:])], [len(t["offset"]) for t in evidence]
    )
    counts = ~_is_hidden(task, rows, words)
    log = number_rows([rows["topic"], rows["partition"]])
    places = pack_places(log, rows["offset"])
    order = np.argsort(places, kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    places, is_scan, counts = places[order], is_scan[order], counts[order]
    parts = _find_contested(task, rows, places, words)
    logs = {}
    for row in np.unique(log[order], return_index=True)[1].tolist():
        logs[words.names[rows["topic"][row]], int(rows["partition"][row])] = int(log[order][row])
    return [*parts, _skips(task, context, _Known(places[counts], is_scan[counts], logs))]


def _is_hidden(task: OffsetCell, rows: Rows, words: Vocabulary) -> Bools:
    """Which rows belong to aborted or open transactions: readers do not have to receive them.

    Only rows at offsets that a reader jumped over are looked up, because only they matter.
    """
    hidden = np.zeros(len(rows["offset"]), dtype=np.bool_)
    jumped = np.flatnonzero(_is_jumped(task, rows["offset"]))
    if not task.transactions or not len(jumped):
        return hidden
    wanted = {name: rows[name][jumped] for name in _MESSAGE}
    members = _read_members(task, wanted, words)
    message = number_rows([np.concatenate([wanted[name], members[name]]) for name in _MESSAGE])
    in_transactions = message[len(jumped) :]
    ended = in_transactions[members["fate"] != OPEN]
    committed = in_transactions[members["fate"] == COMMITTED]
    aborted = np.setdiff1d(ended, committed)
    still_open = np.setdiff1d(in_transactions, ended)
    hidden[jumped] = np.isin(message[: len(jumped)], np.concatenate([aborted, still_open]))
    return hidden


def _is_jumped(task: OffsetCell, offsets: Ints) -> Bools:
    """Which offsets lie in a jump, in any log."""
    # Jumps overlap: an offset lies in one if more begin at or below it than end there.
    jumps = [(j.origin + 1, j.landing) for j in task.jumps if j.origin + 1 < j.landing]
    begins = np.sort(ints([low for low, _ in jumps]))
    ends = np.sort(ints([high for _, high in jumps]))
    begun = np.searchsorted(begins, offsets, side="right")
    found: Bools = begun > np.searchsorted(ends, offsets, side="right")
    return found


def _read_members(task: OffsetCell, wanted: Rows, words: Vocabulary) -> Rows:
    """Read what transactions say of these messages, and of few others.

    All transactions of the run are read, piece by piece: what is kept does not grow with them.
    """
    low, high = int(wanted["sequence"].min()), int(wanted["sequence"].max())
    within = Within("sequence", ((low, high + 1),))
    marks = np.unique(_mix(wanted))
    names = (*_MESSAGE, "fate")
    kept: dict[str, list[Array]] = {name: [] for name in names}
    for piece in task.transactions:
        rows = read_rows("transactions", [piece], names, vocabulary=words, within=within)
        own = _mix(rows)
        near = marks[np.minimum(np.searchsorted(marks, own), len(marks) - 1)]
        for name, column in rows.items():
            kept[name].append(column[near == own])
    return {name: np.concatenate(arrays) for name, arrays in kept.items()}


def _mix(rows: Rows) -> Ints:
    """Return a number for each message: the same for the same, rarely the same for others."""
    mixed = rows["sequence"].astype(np.int64)
    for name in ("lane", "topic", PRODUCER_NUMBER):
        mixed = mixed * _FACTOR + rows[name]  # wraps around
    return mixed


def _read(task: OffsetCell, context: AuditContext, words: Vocabulary) -> list[Rows]:
    """Read all evidence for messages at offsets of the cluster; the scan comes first."""
    within = Within("offset", task.ranges)
    columns = [*_COLUMNS, "partition", "cluster"]
    log = read_rows("log", task.log, columns, vocabulary=words, within=within)
    own = log["cluster"] == words.code(task.cluster)
    evidence = [{name: column[own] for name, column in log.items()}]
    if task.cluster == context.read_cluster:
        columns = [*_COLUMNS, "partition"]
        pieces = task.receipts
        evidence.append(read_rows("receipts", pieces, columns, vocabulary=words, within=within))
    if task.cluster == "source":
        columns = [*_COLUMNS, "outcome"]
        attempts = read_rows("attempts", task.attempts, columns, vocabulary=words, within=within)
        is_evidence = (attempts["outcome"] != FAILED) & (attempts["offset"] != NONE)
        is_evidence &= ~_is_unproven(task, attempts, words)
        attempts = {name: column[is_evidence] for name, column in attempts.items()}
        attempts["partition"] = _source_partitions_for(attempts, context, words)
        evidence.append(attempts)
    return evidence


def _is_unproven(task: OffsetCell, attempts: Rows, words: Vocabulary) -> Bools:
    """Which rows of attempts have an offset that is not evidence."""
    count = len(attempts["offset"])
    if not task.unproven or not count:
        return np.zeros(count, dtype=np.bool_)
    named = [
        (
            words.producer_code(stream.producer, stream.incarnation),
            *(words.code(stream.topic), stream.lane, sequence, offset),
        )
        for stream, sequence, offset in task.unproven
    ]
    names = (PRODUCER_NUMBER, "topic", "lane", "sequence", "offset")
    columns = zip(names, np.array(named, dtype=np.int64).T, strict=True)
    both = [np.concatenate([attempts[name], column]) for name, column in columns]
    number = number_rows(both)
    found: Bools = np.isin(number[:count], number[count:])
    return found


def _source_partitions_for(attempts: Rows, context: AuditContext, words: Vocabulary) -> Ints:
    """Return the source partition of each attempt."""
    number = number_rows([attempts["topic"], attempts["lane"]])
    _, first = np.unique(number, return_index=True)
    homes = [
        context.source_partition(words.names[attempts["topic"][row]], int(attempts["lane"][row]))
        for row in first.tolist()
    ]
    return ints(homes)[number] if homes else ints()


def _find_contested(
    task: OffsetCell, rows: Rows, places: Ints, words: Vocabulary
) -> list[TaskPart]:
    """Find offsets of one log with two different messages."""
    # An unreadable record may be any message, so it contradicts none.
    named = (rows["lane"] != NONE) | (rows["sequence"] != NONE)
    rows, places = {name: column[named] for name, column in rows.items()}, places[named]
    message = np.stack([rows[PRODUCER_NUMBER], rows["lane"], rows["sequence"]], axis=1)
    differs = (message[1:] != message[:-1]).any(axis=1) & (places[1:] == places[:-1])
    found, first = np.unique(places[1:][differs], return_index=True)
    if not len(found):
        return []
    witnesses = np.flatnonzero(differs)[first] + 1
    logs: dict[tuple[str, int], list[int]] = {}
    for row in witnesses.tolist():
        key = (words.names[rows["topic"][row]], int(rows["partition"][row]))
        logs.setdefault(key, []).append(row)
    parts = []
    for (topic, partition), own in logs.items():
        offset = int(rows["offset"][own[0]])
        held = places == places[own[0]]
        messages = sorted({_message(rows, row, words) for row in np.flatnonzero(held).tolist()})
        label = [task.cluster, topic, partition, [list(message) for message in messages[:2]]]
        parts.append(make_part(PartKind.CONTESTED, label, [len(own), offset]))
    return parts


def _message(rows: Rows, row: int, words: Vocabulary) -> tuple[str, int, int, int]:
    """Return producer, lane, sequence and incarnation."""
    producer, incarnation = words.producers[rows[PRODUCER_NUMBER][row]]
    return producer, int(rows["lane"][row]), int(rows["sequence"][row]), incarnation


class _Known:
    """The offsets of known messages, by log."""

    def __init__(self, places: Ints, is_scan: Bools, logs: dict[tuple[str, int], int]) -> None:
        self._all, self._scanned, self._logs = places, places[is_scan], logs

    def first_between(self, log: tuple[str, int], low: int, high: int, scanned: bool) -> int:
        """Return the lowest known offset in [low, high) of a log, or NONE."""
        if log not in self._logs:
            return NONE
        places = self._scanned if scanned else self._all
        bounds = pack_places(ints([self._logs[log]] * 2), ints([low, high]))
        at, end = np.searchsorted(places, bounds).tolist()
        return int(offset_of(places[at : at + 1])[0]) if at < end else NONE


def _skips(task: OffsetCell, context: AuditContext, known: _Known) -> TaskPart:
    """Return the number of each jump past a known message, and the lowest such offset."""
    rows = []
    for jump in task.jumps:
        log = (jump.topic, jump.partition)
        scanned = (task.cluster, *log) in context.scans
        if not scanned and (task.cluster, *log) in context.compacted:
            continue  # a message that was there may be superseded by now
        first = known.first_between(log, jump.origin + 1, jump.landing, scanned)
        if first != NONE:
            rows.append([jump.number, first])
    return make_part(PartKind.SKIPS, None, rows)
