"""Whether one node of a cluster is ready: it is reachable and caught up.

A broker is ready if
- the active controller has seen it fetch the whole metadata log (DescribeQuorum, which the broker
  forwards, so it reaches a controller), and
- by its own metadata it is not fenced, and in sync for each of its replicas.

A controller is ready if it is the leader of the quorum, or the leader has seen it fetch the whole
log. Which of both a node is, its API versions say. `judge_…` are pure.
"""

from dataclasses import dataclass
from typing import Any

from shoal.client.cluster.metadata import ClusterMetadata, from_response
from shoal.client.codes import Code
from shoal.client.config import ClientConfig, parse_address
from shoal.client.transport.handshake import Link
from shoal.client.transport.pool import Pool
from shoal.model.errors import ShoalError
from shoal.wire.api_keys import ApiKey

_QUORUM_TOPIC = "__cluster_metadata"
_NAMED_PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer, with a sentence for people."""

    is_ready: bool
    sentence: str


async def check_node(address: str, node_id: int, *, timeout_s: float) -> Readiness:
    """Ask the node at `address`; `ClientError` if it does not answer."""
    config = ClientConfig.from_properties({"bootstrap.servers": address})
    pool = Pool(config)
    try:
        link = await pool.open(*parse_address(address))
        try:
            if ApiKey.METADATA in link.versions.ranges:
                return await _check_broker(link, node_id, timeout_s)
            return await _check_controller(pool, link, node_id, timeout_s)
        finally:
            pool.discard(link)
    finally:
        await pool.close()


async def _check_broker(link: Link, node_id: int, timeout_s: float) -> Readiness:
    if ApiKey.DESCRIBE_QUORUM in link.versions.ranges:
        quorum = await _describe_quorum(link, timeout_s)
        if not (verdict := judge_metadata(quorum, node_id)).is_ready:
            return verdict
    # After the quorum: so this metadata has everything that the controller had committed then.
    version = link.versions.newest(ApiKey.METADATA, at_least=1)
    values = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    response = await link.ask(ApiKey.METADATA, version, values, timeout_s=timeout_s)
    return judge_replicas(from_response(response), node_id)


async def _check_controller(pool: Pool, link: Link, node_id: int, timeout_s: float) -> Readiness:
    own = await _describe_quorum(link, timeout_s)
    partition = _partition_of(own)
    if partition is None or partition.leader_id < 0:
        return Readiness(is_ready=False, sentence=f"controller {node_id} knows no leader")
    if partition.leader_id == node_id:
        return Readiness(is_ready=True, sentence=f"controller {node_id} is the active controller")
    listeners = {
        node.node_id: node.listeners[0] for node in getattr(own, "nodes", ()) if node.listeners
    }
    at = listeners.get(partition.leader_id)
    if at is None:
        sentence = f"controller {node_id} does not know the address of {partition.leader_id}"
        return Readiness(is_ready=False, sentence=sentence)
    try:
        leader = await pool.open(at.host, at.port)
    except ShoalError as error:
        sentence = f"controller {node_id} follows {partition.leader_id}, which does not answer"
        return Readiness(is_ready=False, sentence=f"{sentence}: {error}")
    try:
        return judge_metadata(await _describe_quorum(leader, timeout_s), node_id)
    finally:
        pool.discard(leader)


async def _describe_quorum(link: Link, timeout_s: float) -> Any:
    values = {"topics": [{"topic_name": _QUORUM_TOPIC, "partitions": [{"partition_index": 0}]}]}
    version = link.versions.newest(ApiKey.DESCRIBE_QUORUM)
    return await link.ask(ApiKey.DESCRIBE_QUORUM, version, values, timeout_s=timeout_s)


def _partition_of(quorum: Any) -> Any:
    return next((p for topic in quorum.topics for p in topic.partitions), None)


def judge_metadata(quorum: Any, node_id: int) -> Readiness:
    """Whether the leader of the quorum has seen this node fetch everything that is committed."""
    partition = _partition_of(quorum)
    if quorum.error_code != Code.NONE or partition is None or partition.error_code != Code.NONE:
        return Readiness(is_ready=False, sentence="no controller is active")
    replicas = {r.replica_id: r for r in (*partition.current_voters, *partition.observers)}
    replica = replicas.get(node_id)
    if replica is None:
        sentence = f"the active controller has not heard of node {node_id}"
        return Readiness(is_ready=False, sentence=sentence)
    missing = int(partition.high_watermark) - int(replica.log_end_offset)
    if missing > 0:
        sentence = f"node {node_id} lacks {missing} records of the metadata log"
        return Readiness(is_ready=False, sentence=sentence)
    return Readiness(is_ready=True, sentence=f"node {node_id} has the whole metadata log")


def judge_replicas(cluster: ClusterMetadata, node_id: int) -> Readiness:
    """Whether the broker is unfenced and all of its replicas are in sync."""
    if node_id not in cluster.brokers:
        return Readiness(is_ready=False, sentence=f"broker {node_id} is fenced or not registered")
    own = [
        (f"{name}-{number}", node_id in partition.isr)
        for name, topic in cluster.topics.items()
        for number, partition in topic.partitions.items()
        if node_id in partition.replicas
    ]
    late = sorted(partition for partition, is_in_sync in own if not is_in_sync)
    if late:
        named = ", ".join(late[:_NAMED_PARTITIONS])
        more = f" and {len(late) - _NAMED_PARTITIONS} more" if len(late) > _NAMED_PARTITIONS else ""
        sentence = f"broker {node_id} is not in sync for {named}{more}"
        return Readiness(is_ready=False, sentence=sentence)
    return Readiness(is_ready=True, sentence=f"broker {node_id}: {len(own)} replicas are in sync")
