"""A client that is quick to try again and quick to give up, for clusters that misbehave."""

from typing import Any

from shoal.client.client import Client
from shoal.model.topics import TopicPartition
from support.client.scripted import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FAST: dict[str, Any] = {
    "reconnect.backoff.ms": 5,
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 20,
    "request.timeout.ms": 2_000,
    "default.api.timeout.ms": 3_000,
    "delivery.timeout.ms": 4_000,
    "fetch.max.wait.ms": 20,
    "linger.ms": 0,
}


def client_of(cluster: ScriptedCluster, **changes: Any) -> Client:
    """A client of this cluster; underscores in the names of settings stand for dots."""
    more = {name.replace("_", "."): value for name, value in changes.items()}
    return Client(FAST | {"bootstrap.servers": cluster.bootstrap} | more)
