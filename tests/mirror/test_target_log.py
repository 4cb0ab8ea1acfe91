"""Who wrote what a target partition holds, also where that is not decided yet."""

import asyncio

from confluent_kafka import Producer

from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.watch.target_log import Contents, inspect_log
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.runs import client, fill, make, values


async def _look(bootstrap: str, topic: str) -> Contents:
    tp = TopicPartition(topic, 0)
    async with client(bootstrap) as target, asyncio.timeout(60):
        await target.metadata([topic])
        end = (await target.list_offsets({tp: LATEST}, isolation="read_uncommitted"))[tp].offset
        return await inspect_log(target, tp, (0, end), None)


async def test_an_open_transaction_is_data_of_somebody_else(target: LiteCluster) -> None:
    await make(target.bootstrap, "open")
    settings = {"bootstrap.servers": target.bootstrap, "transactional.id": "open", **SILENT}
    with Producer(settings) as producer:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("open", b"undecided", partition=0)
        assert producer.flush(30) == 0
        assert await _look(target.bootstrap, "open") == Contents(
            holds_data=True, is_of_producer=False
        )
        producer.abort_transaction(30)
    assert await _look(target.bootstrap, "open") == Contents(holds_data=False, is_of_producer=True)


async def test_records_of_others_are_found(target: LiteCluster) -> None:
    await make(target.bootstrap, "foreign")
    fill(target.bootstrap, "foreign", values("v"))
    found = await _look(target.bootstrap, "foreign")
    assert found == Contents(holds_data=True, is_of_producer=False)
