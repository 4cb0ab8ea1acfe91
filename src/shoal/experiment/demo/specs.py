"""The experiments of the demo.

First two producers side by side, one with acks=1 and one with acks=all, each on a cluster whose
leader is cut off and killed (`sides`). Then a mirror that copies everything, and one that loses
a message. That loss is injected the way a user would change batches: by a handler of the mirror.
"""

from typing import Final

from shoal.experiment.spec import (
    ClusterSpec,
    ExperimentSpec,
    MirrorSpec,
    ProducersSpec,
    TopicsSpec,
    WorkersSpec,
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


ACKS: Final = {"1": 1, "all": -1}
# The same on both sides, and what many clusters have: unclean elections are off by default.
ACKS_BROKERS: Final = 3
ACKS_CONFIGS: Final = {"min.insync.replicas": "2"}
ACKS_RATE_PER_S: Final = 1_000.0
# Far more than it takes: the button ends the sending.
ACKS_LONGEST_S: Final = 120.0


def acks_spec(acks: str) -> ExperimentSpec:
    """One side of the first part; `acks` is "1" or "all"."""
    name = f"demo-acks-{acks}"
    settings = {
        "acks": ACKS[acks],
        "idempotent": acks == "all",  # as in Kafka: idempotence needs acks=all
        "rate_per_s": ACKS_RATE_PER_S,
        "duration_s": ACKS_LONGEST_S,
        "size_bytes": SIZE_BYTES,
        "drain_timeout_s": 60.0,
    }
    return ExperimentSpec(
        name,
        TopicsSpec(
            name,
            partitions=1,
            target_partitions=1,
            replication_factor=ACKS_BROKERS,
            target_replication_factor=ACKS_BROKERS,
            configs=ACKS_CONFIGS,
        ),
        ProducersSpec(1, settings),
        source=ClusterSpec(brokers=ACKS_BROKERS),
        # At once, and two at a time: Spark starts in the meantime, and judges them.
        workers=WorkersSpec("processes"),
        promises={
            "delivery": "at_least_once",
            "order": False,
            "fidelity": ["key", "headers", "payload"],
        },
    )


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
