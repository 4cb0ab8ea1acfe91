"""The topics of a run: created for it, or an existing canary topic that the user names.

Rules:
- A topic is in the manifest before it is created.
- An existing topic is used only if the user names it as the canary topic. Its settings are not
  changed, and its older records are skipped.
- The copy of a topic on the target, and the mirror's own topics, are in the manifest too, unless
  they existed before.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.results import LATEST
from shoal.experiment import plan
from shoal.experiment.manifest import Manifest
from shoal.experiment.plan import Addresses, StartOffsets
from shoal.experiment.spec import ExperimentSpec
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.systems.mirror_kinds import own_groups, own_topics
from shoal.workload.receive.compacted import find_compacted_topics

# Retention must not delete messages before they are judged.
_UNLIMITED_RETENTION: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


async def resolve_existing_topics(spec: ExperimentSpec, addresses: Addresses) -> ExperimentSpec:
    """The experiment with the real partition counts of its existing topics.

    A topic that is compacted on either side is treated as compacted.
    """
    if not spec.topics.existing:
        return spec
    sizes, configs = {}, dict(spec.topics.configs)
    for cluster in addresses.clusters:
        name = topics_on(spec, cluster)[0]
        found = await _find_existing(addresses, cluster, [name])
        if not found:
            raise UsageError(
                f"topic {name} does not exist on the {cluster}",
                remedy="a canary topic must exist on every cluster of the run",
            )
        sizes[cluster] = found[name]
        async with Client(addresses.client_of(cluster)) as client:
            if await find_compacted_topics(client, [name]):
                configs["cleanup.policy"] = "compact"
    topics = replace(
        spec.topics,
        partitions=sizes["source"],
        target_partitions=sizes.get("target", sizes["source"]),
        configs=configs,
    )
    return replace(spec, topics=topics)


async def create_growth(spec: ExperimentSpec, addresses: Addresses, *, is_growth: bool) -> None:
    """Add partitions or create the second topic, on the source only."""
    (name,) = spec.topics.names
    async with Client(addresses.client_of("source")) as client:
        if is_growth:
            await client.admin.create_partitions({name: spec.topics.partitions})
        else:
            await client.admin.create_topics([_new_topic(spec, "source", name)])


async def prepare_topics(run_dir: Path, spec: ExperimentSpec, addresses: Addresses) -> StartOffsets:
    """Create the topics, or find the ends of existing ones; return the run's first offsets."""
    clients = {role: addresses.client_of(role) for role in addresses.clusters}
    manifest = Manifest.begin(run_dir, clients)
    await _record_side_resources(manifest, run_dir.name, spec, addresses)
    if spec.topics.existing:
        return {
            cluster: await _end_offsets(spec, addresses, cluster) for cluster in addresses.clusters
        }
    for cluster in addresses.clusters:
        present = await _find_existing(addresses, cluster, topics_on(spec, cluster))
        for name in present:
            raise UsageError(
                f"topic {name} already exists on the {cluster}, and a run writes only to topics "
                "that it creates",
                remedy="choose another name (--set topics.name=…), or allow it with --canary-topic",
            )
    for cluster in addresses.clusters:
        names = topics_on(spec, cluster)
        manifest.record_topics(cluster, names)
        async with Client(addresses.client_of(cluster)) as client:
            made = await client.admin.create_topics(
                [_new_topic(spec, cluster, name) for name in names]
            )
        manifest.record_ids(cluster, made)
    return {}


def topics_on(spec: ExperimentSpec, cluster: str) -> list[str]:
    """The names of the run's topics on that cluster."""
    if cluster == "source":
        return list(spec.topics.names)
    return [plan.target_topic(spec.mirror, name) for name in spec.topics.names]


def _new_topic(spec: ExperimentSpec, cluster: str, name: str) -> NewTopic:
    configs = _UNLIMITED_RETENTION | dict(spec.topics.configs)
    if cluster == "source":
        return NewTopic(name, spec.topics.partitions, spec.topics.replication_factor, configs)
    copies = spec.topics.target_replication_factor
    return NewTopic(name, spec.topics.target_partitions, copies, configs)


async def _record_side_resources(
    manifest: Manifest, run: str, spec: ExperimentSpec, addresses: Addresses
) -> None:
    """Record the topics and groups that the mirror and the consumers will create."""
    kind, prefix = spec.mirror.kind, plan.prefix_of(spec.mirror)
    for cluster in addresses.clusters:
        names = own_topics(kind, run=run, prefix=prefix).get(cluster, [])
        before = await _find_existing(addresses, cluster, names)
        manifest.record_topics(cluster, [name for name in names if name not in before])
        manifest.record_groups(cluster, own_groups(kind, run=run).get(cluster, []))
        if growth := plan.growth_spec(spec):
            manifest.record_topics(cluster, topics_on(growth, cluster))
    if spec.consumers.settings.get("in_group"):
        groups = [plan.group_id(run, group) for group in spec.consumers.groups]
        manifest.record_groups(addresses.clusters[-1], groups)


async def _find_existing(addresses: Addresses, cluster: str, names: list[str]) -> dict[str, int]:
    """Those of the topics that exist, with their numbers of partitions."""
    if not names:
        return {}
    async with Client(addresses.client_of(cluster)) as client:
        seen = await client.metadata(names)
    sizes = {name: len(seen.partitions_of(name)) for name in names}
    return {name: size for name, size in sizes.items() if size}


async def _end_offsets(
    spec: ExperimentSpec, addresses: Addresses, cluster: str
) -> Mapping[TopicPartition, int]:
    async with Client(addresses.client_of(cluster)) as client:
        names = topics_on(spec, cluster)
        seen = await client.metadata(names)
        logs = [log for name in names for log in seen.partitions_of(name)]
        ends = await client.list_offsets(dict.fromkeys(logs, LATEST))
    return {log: ends[log].offset for log in logs}
