"""Records the three stories of `shoal serve`: the first leaders, a write, an election.

    python scripts/record_stories.py     writes src/shoal/web/page/stories.json

A Kafka Lite with three brokers is traced; what its nodes record between two steps is a story. Run
`scripts/build_page.py` afterwards.
"""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.client import Client, Producer
from shoal.client.admin import NewTopic
from shoal.lite.cluster import LiteCluster
from shoal.web.traces import read_trace

STORIES = Path(__file__).parents[1] / "src" / "shoal" / "web" / "page" / "stories.json"
TOPIC = "orders"
SETTLE_S = 2.0
MOST_EVENTS = 60
LEADERS = """Three brokers (b1 to b3) register with the controller (c100). A topic with one
partition is created: the controller chooses its first leader, and the replicas lead and follow."""
WRITE = """The leader appends a record. The followers copy it with their next fetches; by those the
leader knows that all in-sync replicas have it, advances the high watermark, and answers the
producer."""
ELECTION = """The leader is killed. The controller elects another in-sync replica in a new leader
epoch. The broker starts again, follows, and joins the in-sync replicas."""
TEXTS = {
    "leaders": ("The first leaders", LEADERS),
    "write": ("A write is replicated", WRITE),
    "election": ("An election", ELECTION),
}


async def create_topic(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=3)])


async def send_record(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client, Producer(client) as producer:
        await producer.send(TOPIC, b"an order")


def kill_leader(cluster: LiteCluster) -> None:
    cluster.kill(1)
    time.sleep(SETTLE_S)
    cluster.restart(1)


def record() -> list[dict[str, Any]]:
    """Play the stories one after the other."""
    with LiteCluster(brokers=3, trace=True) as cluster:
        steps: dict[str, Callable[[], None]] = {
            "leaders": lambda: asyncio.run(create_topic(cluster.bootstrap)),
            "write": lambda: asyncio.run(send_record(cluster.bootstrap)),
            "election": lambda: kill_leader(cluster),
        }
        stories = []
        seen = 0
        for name, play in steps.items():
            play()
            time.sleep(SETTLE_S)
            trace = read_trace({"directory": str(cluster.directory)})
            events = sorted(trace["events"], key=lambda event: event[3])
            title, text = TEXTS[name]
            own = [[host, clock, what, None] for host, clock, what, _ in events[seen:]]
            assert len(own) <= MOST_EVENTS, f"{name} has {len(own)} events"
            seen = len(events)
            story = {
                "name": name,
                "title": title,
                "text": " ".join(text.split()),
                "hosts": trace["hosts"],
            }
            stories.append({**story, "events": own})
    return stories


if __name__ == "__main__":
    content = {"version": 1, "stories": record()}
    STORIES.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
