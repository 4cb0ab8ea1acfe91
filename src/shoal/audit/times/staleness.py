"""How stale what a consumer had was when it polled.

Both times of a row are of the consumer's own clock. A poll at whose start nothing more was known
to exist was up to date: its staleness is 0.
"""

import numpy as np

from shoal.audit.arrays import NONE, summed_by_key
from shoal.audit.context import Setting
from shoal.audit.parts import Part, part
from shoal.audit.read.read import Vocabulary, read_rows
from shoal.audit.tasks import LedgerWalk

STALENESS = "staleness"
_COLUMNS = ("group", "polled_us", "known_us", "count")


def judge_polls(task: LedgerWalk, setting: Setting) -> list[Part]:
    """Exact histograms, one for each group; polls in the warm-up do not count."""
    words = Vocabulary()
    rows = read_rows("polls", task.pieces, _COLUMNS, vocabulary=words)
    group, polled_us, known_us, count = (rows[name] for name in _COLUMNS)
    stale_us = np.where(known_us == NONE, 0, polled_us - known_us)
    measured = polled_us >= setting.measure_from_us
    parts = []
    for code in np.unique(group[measured]).tolist():
        own = measured & (group == code)
        table = np.stack(summed_by_key(stale_us[own], count[own]), axis=1)
        parts.append(part("latency", [words.names[code], STALENESS], table))
    return parts
