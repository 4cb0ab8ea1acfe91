"""A client in the network of a played deployment: sends a value, or reads all of a partition.

python exchange.py send BOOTSTRAP VALUE
python exchange.py read BOOTSTRAP COUNT
python exchange.py scrape URL
"""

import asyncio
import sys
import urllib.request

from shoal.client.client import Client
from shoal.client.consume.consumer import Consumer
from shoal.client.produce.producer import Producer
from shoal.client.results import EARLIEST
from shoal.model.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)


async def send(bootstrap: str, value: str) -> None:
    """Send to a topic that the cluster creates as its defaults say."""
    properties = {"bootstrap.servers": bootstrap, "allow.auto.create.topics": "true"}
    async with Client(properties) as client, Producer(client) as producer:
        await producer.send(ORDERS.topic, value.encode(), partition=ORDERS.partition)


async def read(bootstrap: str, count: int) -> None:
    found = 0
    async with asyncio.timeout(240), Client({"bootstrap.servers": bootstrap}) as client:
        while True:
            if ORDERS.topic in (await client.metadata()).topics:
                break
            await asyncio.sleep(0.1)
        async with Consumer(client, {ORDERS: EARLIEST}) as consumer:
            while found < count:
                for one in await consumer.poll_records():
                    found += 1
                    sys.stdout.write((one.record.value or b"").decode() + "\n")


def scrape(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - given by a test
        sys.stdout.write(answer.read().decode())


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    if what == "send":
        asyncio.run(send(where, more[0]))
    elif what == "read":
        asyncio.run(read(where, int(more[0])))
    else:
        scrape(where)
