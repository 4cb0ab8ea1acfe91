"""The ledgers of a run, which are a public format: tables, columns and the commit log.

Rules:
- A run folder holds `run.json` (what was promised and planned), `commits.jsonl` (the
  commit log), `ledger/TABLE/WORKER-EPOCH-NUMBER.parquet` (sealed segments, never renamed
  or changed) and, after an audit, `result.json`, `report.html` and `tables/`.
- A segment counts once it is in the commit log; readers open only those.
- Times are whole microseconds since the Unix epoch; -1 stands for "none".
- Offsets are those of the log named in the row; -1 stands for "none".
- A message is named by (producer, incarnation, topic, lane, sequence); `topic` is always the
  name that the producer wrote to, also in rows about the target. `incarnation` is a number of
  32 bits that a producer drew for its ledger: two producers with one id are two producers.
- A record of this run whose identity block cannot be read is in `receipts` and `log` with producer
  "", lane -1, sequence -1 and `intact` false; its topic is the topic of its log.
- Every Parquet file carries the key `shoal.format` in its schema metadata, the same as `run.json`.
  Format 1 has no incarnations, neither as a column nor in the commit log; it is read as incarnation
  0. Formats 1 and 2 have no chain in the commit log (`commit_chain`).

Columns are (name, Arrow type name) pairs, so that this module needs no Arrow.
"""

from typing import Final

from shoal.model.errors import LedgerError

FORMAT: Final = 3  # the one that is written
FORMATS: Final = (1, 2, 3)  # those that can be read
CHAINED_SINCE: Final = 3  # the first whose lines of the commit log are chained
FORMAT_KEY: Final = b"shoal.format"
# Of a compacted segment: the buckets of streams of each row group (see `audit.read.regroup`).
BUCKETS_KEY: Final = b"shoal.buckets"

# The incarnation of every producer of a ledger of format 1, and of a history.
NO_INCARNATION: Final = 0

Columns = tuple[tuple[str, str], ...]

# One row for each attempt whose outcome the producer knows.
ATTEMPTS: Final[Columns] = (
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("topic", "dictionary"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("outcome", "int8"),  # index into OUTCOMES
    ("error", "int16"),  # Kafka's code of the last error, 0 for none
    ("offset", "int64"),  # in the source log
    ("intended_us", "int64"),
    ("sent_us", "int64"),
    ("acked_us", "int64"),
)

# One row for each delivery, repeated ones too, in order of arrival within a file and
# over the files of a worker in order of (epoch, number).
RECEIPTS: Final[Columns] = (
    ("group", "dictionary"),
    ("consumer", "dictionary"),
    ("assignment", "int32"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),  # in the log that the consumers read
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("timestamp_us", "int64"),  # the record's timestamp
    ("received_us", "int64"),
    ("intact", "bool"),
)

# One row for each stream when its producer ended: how many attempts it made.
MANIFESTS: Final[Columns] = (
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("topic", "dictionary"),
    ("lane", "int32"),
    ("count", "int64"),
)

# One row for each log that was read in full, [start, end).
SCANS: Final[Columns] = (
    ("cluster", "dictionary"),  # "source" or "target"
    ("topic", "dictionary"),
    ("topic_id", "dictionary"),
    ("partition", "int32"),
    ("start", "int64"),
    ("end", "int64"),
    ("compacted", "bool"),  # whether the topic is compacted
)

# One row for each message that a scan found.
LOG: Final[Columns] = (
    ("cluster", "dictionary"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("append_us", "int64"),  # -1 unless the topic stamps append times
    ("timestamp_us", "int64"),
    ("intact", "bool"),
    ("key_check", "int32"),  # CRC-32C of the key; 1 for none
    ("headers_check", "int32"),  # CRC-32C of the header section, its count included
)

# One row for each range [low, high) of offsets at which a scan found no message, because it holds
# control records or data that was aborted. Ledgers from before have no such table.
CONTROL_RANGES: Final[Columns] = (
    ("cluster", "dictionary"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("low", "int64"),
    ("high", "int64"),
    ("fate", "int8"),  # index into FATES; `open` for a control record of another kind
)

# One row for each batch that a scan found, where batches are compared; `producer`, `lane` and
# `sequence` are those of the first message of this run in it.
BATCHES: Final[Columns] = (
    ("cluster", "dictionary"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),  # of the first record
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("records", "int32"),  # how many
    ("codec", "int8"),  # Kafka's number of the compression
    ("records_check", "int32"),  # CRC-32C of everything after the header
    ("base_timestamp_us", "int64"),
    ("max_timestamp_us", "int64"),
    ("stamped", "bool"),  # whether the topic stamps append times
)

# One row for each batch of the target that the mirror reported as re-encoded.
RE_ENCODED: Final[Columns] = (
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),  # of the first record
)

# One row for each time a consumer's position was set; `offset` is the first one to read.
ASSIGNMENTS: Final[Columns] = (
    ("group", "dictionary"),
    ("consumer", "dictionary"),
    ("assignment", "int32"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),
    ("assigned_us", "int64"),
)

# One row for each poll of a consumer with a fixed assignment, empty polls too; `known_us` is when
# a response first showed that a record exists at `offset`, -1 if none had until then.
POLLS: Final[Columns] = (
    ("group", "dictionary"),
    ("consumer", "dictionary"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),  # the next one to read
    ("polled_us", "int64"),  # of the first poll, if the row stands for several
    ("known_us", "int64"),
    ("count", "int64"),  # how many consecutive polls without a known record
)

# The final position of the mirror (in the source log) or of a group (in the log it reads).
POSITIONS: Final[Columns] = (
    ("reader", "dictionary"),  # "mirror" or the name of a group
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),
)

# One row for each drain marker that arrived; markers are not messages.
MARKERS: Final[Columns] = (
    ("group", "dictionary"),
    ("consumer", "dictionary"),
    ("topic", "dictionary"),
    ("partition", "int32"),
    ("offset", "int64"),
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("lane", "int32"),
    ("sent_us", "int64"),
    ("received_us", "int64"),
)

# One row for each attempt with a key, on compacted topics only.
KEYS: Final[Columns] = (
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("topic", "dictionary"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("key", "int64"),  # a number for the key: equal keys have equal numbers
)

# One row for each attempt made in a transaction. A transaction that ended may also have rows from
# before its end: a later fate replaces `open`.
TRANSACTIONS: Final[Columns] = (
    ("producer", "dictionary"),
    ("incarnation", "int64"),
    ("topic", "dictionary"),
    ("lane", "int32"),
    ("sequence", "int64"),
    ("transaction", "int64"),  # unique for each transaction of the run
    ("fate", "int8"),  # index into FATES
    ("requested_us", "int64"),  # when the commit was requested
)

TABLES: Final[dict[str, Columns]] = {
    "attempts": ATTEMPTS,
    "receipts": RECEIPTS,
    "manifests": MANIFESTS,
    "scans": SCANS,
    "log": LOG,
    "control_ranges": CONTROL_RANGES,
    "batches": BATCHES,
    "re_encoded": RE_ENCODED,
    "assignments": ASSIGNMENTS,
    "polls": POLLS,
    "positions": POSITIONS,
    "markers": MARKERS,
    "keys": KEYS,
    "transactions": TRANSACTIONS,
}

# In these tables the order of rows matters across streams: a compacted segment has a last column
# `position`, with the place of each row.
ORDERED: Final = ("receipts", "log")
POSITION: Final = "position"


def columns_of(table: str, table_format: int = FORMAT) -> Columns:
    """The columns of a table in that format."""
    columns = TABLES[table]
    return columns if table_format > 1 else tuple(c for c in columns if c[0] != "incarnation")


def read_format(stored: object, place: str) -> int:
    """The format that a file or folder names; `LedgerError` if this version cannot read it."""
    number = int(stored) if isinstance(stored, bytes) and stored.isdigit() else stored
    if type(number) is not int or number not in FORMATS:
        raise LedgerError(
            f"{place} has ledger format {number!r:.40}; this version reads the formats"
            f" {FORMATS[0]} to {FORMATS[-1]}",
            remedy="read it with the version of shoal that wrote it, or a newer one",
        )
    return number


# Values of `attempts.outcome`.
OUTCOMES: Final = ("ok", "failed", "unknown")
OK: Final = 0
FAILED: Final = 1
UNKNOWN: Final = 2

# Values of `transactions.fate`; `open` also means "the response to the commit was lost".
FATES: Final = ("committed", "aborted", "open")
COMMITTED: Final = 0
ABORTED: Final = 1
OPEN: Final = 2

# Values of `phase` in lines of kind `fault`.
FAULT_PHASES: Final = ("begin", "end")

COMPACTED: Final = "compacted"  # a kind of line

# Kinds of lines in the commit log. Every line is one JSON object with `kind` and `at_us`, and with
# `line` and `check` of the chain.
# - lease:   worker, epoch, host      the worker may run; a newer epoch fences the older;
#            workers with the same `host` read the same clock
# - reserve: worker, epoch, producer, incarnation, topic, lane, until
#            sequences below `until` may have been sent, even if nothing else records them
# - segment: worker, epoch, table, number, path, rows
#            a sealed file, `path` relative to the run folder
# - compacted: worker, epoch, table, number, last, path, rows
#            a file with the rows of the segments `number` to `last`, which are deleted
# - drained: producer, incarnation, topic, lane, group
#            a marker sent after the lane's last message arrived at that group
# - foreign: worker, cluster, count   records of other runs or of other programs
# - ended:   worker, epoch, reason    finished | stopped | lost | failed
# - fault:   fault, phase, name, target, detail
#            fault number `fault` (from 1, in order of begin), such as a "kill" of "source/1",
#            began or ended (phase "begin" | "end") at `at_us`; without a line for its end
#            it lasts to the end of the run. `detail` is an object with its settings
# - clock:   worker, epoch, low_us, high_us
#            bounds of the worker's clock minus the driver's since the last such line
COMMIT_KINDS: Final = (
    "lease",
    "reserve",
    "segment",
    COMPACTED,
    "drained",
    "foreign",
    "ended",
    "fault",
    "clock",
)
