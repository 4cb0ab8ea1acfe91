"""The outcome of an attempt, and which of the offsets that producers reported are evidence.

Rules, as in the definitions:
- The outcome of an attempt in a transaction is the transaction's: committed, `ok`, also where
  its own answer was lost; aborted, `failed`; not known to have ended, `unknown`. An attempt that
  the client itself reported as `failed` stays `failed` in a committed transaction. So it is never
  committed, however its transaction ended: nobody is owed it, and nobody may receive it.
- The offset that an `unknown` attempt has is evidence only if its answer arrived (`acked_us`
  is set) or the attempt is committed: it, or a message of its transaction, was delivered.
- The offset of a send that the client reported as `failed` is never evidence.
"""

import numpy as np

from shoal.audit.arrays import NONE, Array, Bools, Rows
from shoal.audit.read.evidence import NEVER, Memberships
from shoal.model.ledger import ABORTED, COMMITTED, FAILED, OK, OPEN, UNKNOWN


def apply_fates(outcome: Array, reported: Array, members: Memberships) -> None:
    """Set the outcome of attempts in transactions to that of their transaction, in place.

    `reported` is the outcome that the client reported for each attempt.
    """
    attempted = outcome != NEVER
    outcome[attempted & (members.fate == COMMITTED) & (reported != FAILED)] = OK
    outcome[attempted & (members.fate == ABORTED)] = FAILED
    outcome[attempted & (members.fate == OPEN)] = UNKNOWN


def is_unproven_offset(rows: Rows, outcome: Array, committed: Bools) -> Bools:
    """Which rows of attempts have an offset that no answer confirms.

    `outcome` and `committed` are those of each row's attempt. Rows of failed sends are excluded:
    their offsets are never evidence.
    """
    unanswered = (rows["acked_us"] == NONE) & (rows["offset"] != NONE) & (rows["outcome"] != FAILED)
    in_doubt = (outcome == UNKNOWN) & ~committed
    # Of an aborted transaction, only messages that were acknowledged are known to be in the log.
    in_doubt |= (outcome == FAILED) & (rows["outcome"] == UNKNOWN)
    found: Bools = unanswered & in_doubt
    return found


def is_refused(reported: Array, members: Memberships | None, refused_by_error: Bools) -> Bools:
    """Which attempts failed on their own, not only because their transaction was aborted.

    Producers of Shoal record `failed` for every attempt of an aborted transaction, and one that
    died may not have recorded the abort; the error code (`refused_by_error`) shows which of them
    were refused.
    """
    refused: Bools = reported == FAILED
    if members is not None:
        has_withdrawn = (members.fate == ABORTED) | (members.fate == OPEN)
        refused = refused & (~has_withdrawn | refused_by_error)
    return np.asarray(refused)
