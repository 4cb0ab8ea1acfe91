"""The topics of a run: made for it and written down, or somebody's that it was told to use.

Rules:
- What is to be made stands in the manifest (`created.json`) before it is made, so that
  `shoal clean` finds it after any end. The manifest holds no passwords.
- A topic that is there already is never used unless the user named it as a canary; nothing of
  such a topic is changed, and its older records are passed over.
- The copy of a topic on the target is in the manifest too, whoever makes it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.results import LATEST
from shoal.experiment import plan
from shoal.experiment.plan import Addresses, Beginnings
from shoal.experiment.spec import ExperimentSpec
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition

MANIFEST: Final = "created.json"
FORMAT: Final = 1
_SECRET: Final = re.compile(r"password|secret|jaas|token|key$", re.IGNORECASE)
# Test data must not expire under the judge's eyes.
_KEPT_FOR_GOOD: Final = {"retention.ms": "-1", "retention.bytes": "-1"}

Json = dict[str, Any]


async def with_existing_topics(spec: ExperimentSpec, addresses: Addresses) -> ExperimentSpec:
    """The experiment with the real sizes of the topics that it was told to use."""
    if not spec.topics.existing:
        return spec
    sizes = {}
    for cluster in addresses.clusters:
        name = topics_on(spec, cluster)[0]
        async with Client(addresses.client_of(cluster)) as client:
            found = (await client.metadata([name])).partitions_of(name)
        if not found:
            raise UsageError(
                f"there is no topic {name} on the {cluster}",
                remedy="a canary topic must exist on every cluster of the run",
            )
        sizes[cluster] = len(found)
    topics = replace(
        spec.topics,
        partitions=sizes["source"],
        target_partitions=sizes.get("target", sizes["source"]),
    )
    return replace(spec, topics=topics)


async def prepare_topics(run_dir: Path, spec: ExperimentSpec, addresses: Addresses) -> Beginnings:
    """Makes the topics, or finds out where existing ones end; returns where the run begins."""
    if spec.topics.existing:
        write_manifest(run_dir, addresses, {})
        return {cluster: await _ends(spec, addresses, cluster) for cluster in addresses.clusters}
    await _refuse_existing(spec, addresses)
    write_manifest(run_dir, addresses, {name: topics_on(spec, name) for name in addresses.clusters})
    configs = _KEPT_FOR_GOOD | dict(spec.topics.configs)
    for cluster in addresses.clusters:
        is_target = cluster == "target"
        size = spec.topics.target_partitions if is_target else spec.topics.partitions
        copies = spec.topics.replication_factor
        if is_target:
            copies = spec.topics.target_replication_factor
        async with Client(addresses.client_of(cluster)) as client:
            await client.admin.create_topics(
                [NewTopic(name, size, copies, configs) for name in topics_on(spec, cluster)]
            )
    return {}


def topics_on(spec: ExperimentSpec, cluster: str) -> list[str]:
    """How the topics of the run are called there."""
    if cluster == "source":
        return list(spec.topics.names)
    return [plan.target_topic(spec.mirror, name) for name in spec.topics.names]


async def _refuse_existing(spec: ExperimentSpec, addresses: Addresses) -> None:
    """Before the manifest names them as ours."""
    for cluster in addresses.clusters:
        names = topics_on(spec, cluster)
        async with Client(addresses.client_of(cluster)) as client:
            seen = await client.metadata(names)
        for name in names:
            if seen.partitions_of(name):
                raise UsageError(
                    f"topic {name} is on the {cluster} already, and a run writes only to topics "
                    "of its own",
                    remedy="name others (--set topics.name=…), or allow it: --canary-topic",
                )


async def _ends(
    spec: ExperimentSpec, addresses: Addresses, cluster: str
) -> Mapping[TopicPartition, int]:
    async with Client(addresses.client_of(cluster)) as client:
        names = topics_on(spec, cluster)
        seen = await client.metadata(names)
        logs = [log for name in names for log in seen.partitions_of(name)]
        ends = await client.list_offsets(dict.fromkeys(logs, LATEST))
    return {log: ends[log].offset for log in logs}


def write_manifest(run_dir: Path, addresses: Addresses, topics: Mapping[str, list[str]]) -> None:
    """Says what this run makes, and how each cluster is reached."""
    clusters: Json = {}
    for cluster in addresses.clusters:
        properties = addresses.client_of(cluster)
        clusters[cluster] = {
            "client": {k: v for k, v in properties.items() if not _SECRET.search(k)},
            "topics": topics.get(cluster, []),
        }
    text = json.dumps({"format": FORMAT, "clusters": clusters}, indent=2)
    scratch = run_dir / f".{MANIFEST}"
    scratch.write_text(text + "\n", encoding="utf-8")
    scratch.replace(run_dir / MANIFEST)
