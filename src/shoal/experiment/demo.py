"""The demo: one run without loss, and one in which the mirror loses a message.

The loss is injected the way a user would change batches: by a handler of the mirror.
"""

from shoal.experiment.spec import (
    ClusterSpec,
    ExperimentSpec,
    MirrorSpec,
    ProducersSpec,
    TopicsSpec,
)
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import decode_records, encode_batch

PARTITIONS = 4
SIZE_BYTES = 512
MESSAGES = 20_000
RATE_PER_S = 4_000.0
LOSSY_MESSAGES = 8_000
LOST_PARTITION = 2
LOST_OFFSET = 1_000


def lossless_spec() -> ExperimentSpec:
    return _make_spec("demo", MESSAGES)


def lossy_spec() -> ExperimentSpec:
    handler = f"{__name__}:{lose_one_message.__name__}"
    return _make_spec("demo-with-a-loss", LOSSY_MESSAGES, handler=handler)


def _make_spec(name: str, messages: int, *, handler: str | None = None) -> ExperimentSpec:
    settings = {
        "messages": messages,
        "rate_per_s": RATE_PER_S,
        "size_bytes": SIZE_BYTES,
        "codec": "lz4",
        "drain_timeout_s": 60.0,
    }
    return ExperimentSpec(
        name,
        TopicsSpec(name, partitions=PARTITIONS, target_partitions=PARTITIONS),
        ProducersSpec(1, settings),
        target=ClusterSpec(),
        mirror=MirrorSpec("shoal", handler=handler),
    )


def lose_one_message(partition: TopicPartition, batch: Batch) -> Batch | bytearray | None:
    """A handler for the mirror that drops one message and keeps all others."""
    holds_it = batch.base_offset <= LOST_OFFSET <= batch.last_offset
    if partition.partition != LOST_PARTITION or not holds_it:
        return batch
    kept = [record for record in decode_records(batch) if record.offset != LOST_OFFSET]
    dense = [record._replace(offset=place) for place, record in enumerate(kept)]
    return encode_batch(dense, codec=batch.codec) if dense else None
