"""Staleness: how old the data of a consumer was at the start of each poll.

Both times of a row are from the consumer's own clock. A poll is up to date, with a staleness of 0,
if no further record was known to exist when it started.
"""

import numpy as np

from shoal.audit.arrays import NONE, sum_by_key
from shoal.audit.context import AuditContext
from shoal.audit.parts import TaskPart
from shoal.audit.read.read import Vocabulary, read_rows
from shoal.audit.tasks import LedgerWalk
from shoal.audit.times.runs import record_latencies

STALENESS = "staleness"
_COLUMNS = ("group", "polled_us", "known_us", "count")


def judge_polls(task: LedgerWalk, context: AuditContext) -> list[TaskPart]:
    """Measure each group, outside of all segments; polls in the warm-up do not count."""
    words = Vocabulary()
    rows = read_rows("polls", task.pieces, _COLUMNS, vocabulary=words)
    group, polled_us, known_us, count = (rows[name] for name in _COLUMNS)
    stale_us = np.where(known_us == NONE, 0, polled_us - known_us)
    measured = polled_us >= context.measure_from_us
    tables = []
    for code in np.unique(group[measured]).tolist():
        own = measured & (group == code)
        table = np.stack(sum_by_key(stale_us[own], count[own]), axis=1)
        tables.append((words.names[code], STALENESS, np.insert(table, 0, NONE, axis=1)))
    return record_latencies(tables, context.scratch)
