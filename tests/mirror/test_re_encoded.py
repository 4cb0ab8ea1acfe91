"""Batches that the mirror packs anew are declared: before they are sent, and to the audit."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.codes import Code
from shoal.client.produce.compare_and_append import AppendResult
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.experiment.plan import Addresses
from shoal.experiment.run import run_workload
from shoal.experiment.spec import MirrorSpec
from shoal.lite.cluster import LiteCluster
from shoal.mirror.copy.delivery.compare_and_append import AppendDelivery
from shoal.mirror.copy.delivery.idempotent import IdempotentDelivery
from shoal.mirror.copy.delivery.transactional import TransactionalDelivery
from shoal.mirror.copy.intake import Intake
from shoal.mirror.copy.partition import Delivery, PartitionCopier, PartitionMirror
from shoal.mirror.offsets.re_encoded import ReEncodedFile, read_re_encoded
from shoal.model.errors import LedgerError
from shoal.model.findings import Finding, Outcome, Verdict
from shoal.model.topics import TopicPartition
from shoal.wire.batch import TIMESTAMP_TYPE_BIT, Batch
from support.experiment.experiments import make_mirrored_spec
from support.mirror.batches import record_set, stored_batch

PARTITION = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(77, 2)
TOO_LARGE = ProduceResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE)
MOST_BYTES = 4_000
DeliveryT = TypeVar("DeliveryT", bound=Delivery)


def _mirror(
    position: int = 0, target_offset: int = 0, **options: Any
) -> tuple[PartitionMirror, list[int]]:
    delivery = IdempotentDelivery(IDENTITY, **options)
    return _mirror_by(delivery, position, target_offset)


def _mirror_by(
    delivery: DeliveryT, position: int = 0, target_offset: int = 0
) -> tuple[PartitionCopier[DeliveryT], list[int]]:
    declared: list[int] = []
    intake = Intake(PARTITION, keeps_offsets=delivery.keeps_offsets)
    mirror = PartitionCopier(intake, delivery, position, Backoff(1, 1), target_offset=target_offset)
    mirror.declare = lambda _target, offset: declared.append(offset)
    return mirror, declared


def _feed(mirror: PartitionMirror, *batches: bytearray) -> None:
    mirror.on_fetched(record_set(*batches), aborted=(), last_stable_offset=1000)


def _send(mirror: PartitionMirror, result: ProduceResult) -> None:
    outgoing = mirror.next_batch(1e9)
    assert outgoing is not None
    mirror.mark_sent(outgoing)
    mirror.on_produce_result(outgoing, result, now=0.0)


def test_what_goes_as_it_is_is_not_declared() -> None:
    mirror, declared = _mirror()
    _feed(mirror, stored_batch(0, 3), stored_batch(3, 3))
    _send(mirror, ProduceResult(Outcome.OK, base_offset=0))
    assert declared == []


def test_a_trimmed_batch_is_declared_before_it_is_sent() -> None:
    mirror, declared = _mirror(position=2, target_offset=50)
    _feed(mirror, stored_batch(0, 5))
    outgoing = mirror.next_batch(0.0)
    assert outgoing is not None
    mirror.mark_sent(outgoing)
    assert declared == [50]


def test_pieces_are_declared_where_they_will_be() -> None:
    mirror, declared = _mirror(target_offset=10, is_known_at_start=True)
    _feed(mirror, stored_batch(0, 2), stored_batch(2, 6))
    first = mirror.next_batch(0.0)
    assert first is not None
    mirror.mark_sent(first)
    _send(mirror, TOO_LARGE)
    mirror.on_produce_result(first, ProduceResult(Outcome.OK, base_offset=10), now=0.0)
    for offset in (12, 15):
        _send(mirror, ProduceResult(Outcome.OK, base_offset=offset))
    assert declared == [12, 15]


def test_a_piece_that_is_elsewhere_is_declared_there_too() -> None:
    mirror, declared = _mirror(position=2)
    _feed(mirror, stored_batch(0, 5))
    _send(mirror, ProduceResult(Outcome.OK, base_offset=8))
    assert declared == [0, 8]


def test_compare_and_append_declares_offsets_of_the_source() -> None:
    mirror, declared = _mirror_by(AppendDelivery())
    _feed(mirror, stored_batch(0, 4))
    unit = mirror.delivery.next_unit(0.0, 1 << 20)
    mirror.delivery.on_append_result(
        unit, AppendResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE), now=0.0
    )
    mirror.delivery.next_unit(0.0, 1 << 20)
    assert declared == [0, 2]


def test_transactions_declare_before_they_are_committed() -> None:
    mirror, declared = _mirror_by(TransactionalDelivery(), position=1)
    _feed(mirror, stored_batch(0, 4))
    (outgoing,) = mirror.delivery.take(1 << 20)
    assert declared == []
    mirror.delivery.on_written(outgoing, ProduceResult(Outcome.OK, base_offset=31))
    assert declared == [31]


def test_several_starts_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "declared"
    for offset in (3, 8):
        ReEncodedFile(path).declare(PARTITION, offset)
    with path.open("a") as file:
        file.write('{"topic": "t", "parti')  # the last of a process that was killed
    assert read_re_encoded(path) == {(PARTITION, 3), (PARTITION, 8)}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot write the list of re-encoded batches") as caught:
        ReEncodedFile(tmp_path / "missing" / "declared")
    assert caught.value.remedy


def test_a_batch_of_the_sources_append_time_is_declared() -> None:
    mirror, declared = _mirror(target_offset=50)
    stored = stored_batch(0, 3)
    batch = Batch(memoryview(stored))
    batch.edit(attributes=batch.attributes | TIMESTAMP_TYPE_BIT)
    _feed(mirror, stored)
    _send(mirror, ProduceResult(Outcome.OK, base_offset=50))
    assert declared == [50]


@pytest.mark.parametrize("delivery", ["idempotent", "compare-and-append"])
@pytest.mark.quick("idempotent")
def test_the_audit_finds_the_append_times_of_the_source_at_the_target(
    tmp_path: Path, delivery: str
) -> None:
    """The broker of the source stamps, that of the target does not."""
    fidelity = ["key", "headers", "payload", "timestamps", "bytes"]
    spec = make_mirrored_spec("stamped", 1_000, 4_000)
    spec = replace(
        spec,
        mirror=MirrorSpec("shoal", delivery=delivery),
        promises={**spec.promises, "fidelity": fidelity},
    )
    folder = tmp_path / "run"
    stamps = {"log.message.timestamp.type": "LogAppendTime"}
    with LiteCluster(properties=stamps) as source, LiteCluster() as target:
        addresses = Addresses(source.bootstrap, target.bootstrap)
        run_workload(spec, addresses=addresses, run_dir=folder, watch=lambda _progress: None)
    declared = read_re_encoded(folder / "mirror-re-encoded.jsonl")
    assert bool(declared) is (delivery == "idempotent")
    result = audit(open_ledger([folder]))
    assert dict(result.findings) == {}
    assert result.verdict is Verdict.PROVEN
    assert "replication" not in result.metrics.latency_us


@pytest.mark.parametrize(
    ("delivery", "prefix"), [("idempotent", "copy."), ("compare-and-append", "")]
)
@pytest.mark.quick("compare-and-append-")
def test_the_audit_counts_batches_that_had_to_be_split_as_declared(
    tmp_path: Path, delivery: str, prefix: str
) -> None:
    spec = make_mirrored_spec("split", 1_000, 4_000, codec="none", linger_us=20_000)
    spec = replace(
        spec,
        mirror=MirrorSpec(
            "shoal", delivery=delivery, prefix=prefix, arguments=("--no-sync-topic-configs",)
        ),
        promises={**spec.promises, "fidelity": ["key", "headers", "payload", "bytes"]},
    )
    limit = {"message.max.bytes": str(MOST_BYTES)}
    folder = tmp_path / "run"
    with LiteCluster() as source, LiteCluster(properties=limit) as target:
        addresses = Addresses(source.bootstrap, target.bootstrap)
        run_workload(spec, addresses=addresses, run_dir=folder, watch=lambda _progress: None)
    declared = read_re_encoded(folder / "mirror-re-encoded.jsonl")
    assert {partition.topic for partition, _ in declared} == {f"{prefix}split"}
    result = audit(open_ledger([folder]))
    assert Finding.BATCH_DIFFERS not in result.findings
    assert result.verdict is Verdict.PROVEN
