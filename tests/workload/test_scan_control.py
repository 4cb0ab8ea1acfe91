"""A scan records where control records are, so that an audit need not look there."""

from pathlib import Path

from confluent_kafka import Producer

from shoal.lite.cluster import LiteCluster
from shoal.model.ledger import ABORTED, COMMITTED
from shoal.workload.specs import StartingPoint
from support.experiment.workload_bench import TOPIC, Bench


async def test_a_scan_records_the_markers_of_transactions(tmp_path: Path) -> None:
    with LiteCluster() as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        for end in (producer.commit_transaction, producer.abort_transaction) * 2:
            producer.begin_transaction()
            for _ in range(3):
                producer.produce(TOPIC, value=b"foreign", partition=0)
            assert producer.flush(60) == 0  # an abort would drop what is not sent yet
            end(60)
        bench = Bench(tmp_path / "run", kafka.bootstrap)
        summary = await bench.scan((StartingPoint(TOPIC, 0, 4, recorded_as="theirs"),))
        bench.log.close()
    assert summary.foreign == 9  # of the first transaction nothing, not even its marker
    rows = bench.run().read("control_ranges").to_pylist()
    assert [(row["low"], row["high"], row["fate"]) for row in rows] == [
        (7, 8, ABORTED),
        (11, 12, COMMITTED),
        (15, 16, ABORTED),
    ]
    assert {(row["cluster"], row["topic"], row["partition"]) for row in rows} == {
        ("source", "theirs", 0)
    }
