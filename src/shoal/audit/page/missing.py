"""Messages that a run has lost so far, from its ledgers, while it still runs.

A message counts only if it can no longer be on its way: it was acknowledged before a given time,
some message of its lane that was acknowledged after that time has been received, and it has not.
In one partition messages arrive in the order of the log, and receipts are recorded in the order of
arrival. The audit decides in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from shoal.audit.context import build_context
from shoal.audit.page.life import MessageName
from shoal.audit.plan import make_cell
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.view import CellView
from shoal.model.ledger import OK

MOST_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class MissingMessages:
    """How many messages are lost, and the first of them."""

    count: int
    examples: tuple[MessageName, ...]


def find_missing(
    run_dirs: Sequence[Path], acknowledged_before_us: int, *, most_sequences: int
) -> MissingMessages:
    """Return what was acknowledged before that time and passed by later messages of its lane.

    Sequences from `most_sequences` on are not examined.
    """
    ledger = open_ledger([folder.absolute() for folder in run_dirs])
    view = CellView(make_cell(ledger, 0, most_sequences), build_context(ledger))
    slots = np.arange(view.index.size)
    streams, delivered = view.index.stream_of(slots), view.delivered_to_anyone
    is_acknowledged = view.attempts.outcome == OK
    is_before = view.attempts.acked_us < acknowledged_before_us
    passed = np.unique(streams[is_acknowledged & ~is_before & delivered])
    lost = slots[is_acknowledged & is_before & ~delivered & np.isin(streams, passed)]
    lost = lost[np.argsort(view.index.sequence_of(lost), kind="stable")]
    examples = []
    for slot in lost[:MOST_EXAMPLES]:
        stream = view.index.streams[int(view.index.stream_of(np.array([slot]))[0])]
        sequence = int(view.index.sequence_of(np.array([slot]))[0])
        examples.append(MessageName(stream.topic, stream.producer, stream.lane, sequence))
    return MissingMessages(len(lost), tuple(examples))
