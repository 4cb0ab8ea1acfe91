"""Loads and compiles the code for messages, by writing one message and reading it back.

Loading the compiled loops from their cache takes a second, and compiling them many seconds. Without
this, the first messages of a run would be delayed by that time.
"""

import numpy as np

from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.columns import encode_columns
from shoal.workload.envelope import Envelope
from shoal.workload.envelope_columns import MessageWriter
from shoal.workload.receive.reading import FoundBatch, LogReader


def write_and_read_a_message() -> None:
    """Write and read one message with each place of the envelope: their loops differ."""
    for in_headers in (False, True):
        zero = np.zeros(1, np.int64)
        envelope = Envelope("warm-up", "warm-up", "warm-up", 256, in_headers)
        written = MessageWriter(envelope, 1).write(zero, zero, zero, sent_ns=1)
        batch = encode_columns(
            values=written.values, keys=written.keys, headers=written.headers, timestamps=zero
        )
        log = TopicPartition("warm-up", 0)
        reader = LogReader("warm-up", ["warm-up"], {log: 0}, isolation="read_uncommitted")
        reader.decode([FoundBatch(0, Batch(memoryview(batch)), 0)])
