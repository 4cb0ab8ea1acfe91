"""The topics of a run: made for it and written down, or somebody's that it was told to use.

Rules:
- What is to be made stands in the manifest before it is made.
- A topic that is there already is never used unless the user named it as a canary; nothing of
  such a topic is changed, and its older records are passed over.
- The copy of a topic on the target, and what the mirror makes for itself, are in the manifest
  too, unless they were there before.
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
from shoal.experiment.plan import Addresses, Beginnings
from shoal.experiment.spec import ExperimentSpec
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.systems.mirror_kinds import own_groups, own_topics
from shoal.workload.receive.compacted import compacted_topics

# Test data must not expire under the judge's eyes.
_KEPT_FOR_GOOD: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


async def with_existing_topics(spec: ExperimentSpec, addresses: Addresses) -> ExperimentSpec:
    """The experiment with the real sizes of the topics that it was told to use.

    One that is compacted on either side is written to as such.
    """
    if not spec.topics.existing:
        return spec
    sizes, configs = {}, dict(spec.topics.configs)
    for cluster in addresses.clusters:
        name = topics_on(spec, cluster)[0]
        found = await _present(addresses, cluster, [name])
        if not found:
            raise UsageError(
                f"there is no topic {name} on the {cluster}",
                remedy="a canary topic must exist on every cluster of the run",
            )
        sizes[cluster] = found[name]
        async with Client(addresses.client_of(cluster)) as client:
            if await compacted_topics(client, [name]):
                configs["cleanup.policy"] = "compact"
    topics = replace(
        spec.topics,
        partitions=sizes["source"],
        target_partitions=sizes.get("target", sizes["source"]),
        configs=configs,
    )
    return replace(spec, topics=topics)


async def create(spec: ExperimentSpec, addresses: Addresses, *, is_growth: bool) -> None:
    """Makes what is new of a topic, on the source alone."""
    (name,) = spec.topics.names
    async with Client(addresses.client_of("source")) as client:
        if is_growth:
            await client.admin.create_partitions({name: spec.topics.partitions})
        else:
            await client.admin.create_topics([_new(spec, "source", name)])


async def prepare_topics(run_dir: Path, spec: ExperimentSpec, addresses: Addresses) -> Beginnings:
    """Makes the topics, or finds out where existing ones end; returns where the run begins."""
    clients = {role: addresses.client_of(role) for role in addresses.clusters}
    manifest = Manifest.begin(run_dir, clients)
    await _enter_belongings(manifest, run_dir.name, spec, addresses)
    if spec.topics.existing:
        return {cluster: await _ends(spec, addresses, cluster) for cluster in addresses.clusters}
    for cluster in addresses.clusters:
        present = await _present(addresses, cluster, topics_on(spec, cluster))
        for name in present:
            raise UsageError(
                f"topic {name} is on the {cluster} already, and a run writes only to topics "
                "of its own",
                remedy="name others (--set topics.name=…), or allow it: --canary-topic",
            )
    for cluster in addresses.clusters:
        names = topics_on(spec, cluster)
        manifest.enter_topics(cluster, names)
        async with Client(addresses.client_of(cluster)) as client:
            made = await client.admin.create_topics([_new(spec, cluster, name) for name in names])
        manifest.enter_ids(cluster, made)
    return {}


def topics_on(spec: ExperimentSpec, cluster: str) -> list[str]:
    """How the topics of the run are called there."""
    if cluster == "source":
        return list(spec.topics.names)
    return [plan.target_topic(spec.mirror, name) for name in spec.topics.names]


def _new(spec: ExperimentSpec, cluster: str, name: str) -> NewTopic:
    configs = _KEPT_FOR_GOOD | dict(spec.topics.configs)
    if cluster == "source":
        return NewTopic(name, spec.topics.partitions, spec.topics.replication_factor, configs)
    copies = spec.topics.target_replication_factor
    return NewTopic(name, spec.topics.target_partitions, copies, configs)


async def _enter_belongings(
    manifest: Manifest, run: str, spec: ExperimentSpec, addresses: Addresses
) -> None:
    """What mirror and consumers will make for themselves."""
    kind, prefix = spec.mirror.kind, plan.prefix_of(spec.mirror)
    for cluster in addresses.clusters:
        names = own_topics(kind, run=run, prefix=prefix).get(cluster, [])
        before = await _present(addresses, cluster, names)
        manifest.enter_topics(cluster, [name for name in names if name not in before])
        manifest.enter_groups(cluster, own_groups(kind, run=run).get(cluster, []))
        if newcomers := plan.later(spec):
            manifest.enter_topics(cluster, topics_on(newcomers, cluster))
    if spec.consumers.settings.get("in_group"):
        groups = [plan.group_id(run, group) for group in spec.consumers.groups]
        manifest.enter_groups(addresses.clusters[-1], groups)


async def _present(addresses: Addresses, cluster: str, names: list[str]) -> dict[str, int]:
    """Which of these topics are there, with the number of their partitions."""
    if not names:
        return {}
    async with Client(addresses.client_of(cluster)) as client:
        seen = await client.metadata(names)
    sizes = {name: len(seen.partitions_of(name)) for name in names}
    return {name: size for name, size in sizes.items() if size}


async def _ends(
    spec: ExperimentSpec, addresses: Addresses, cluster: str
) -> Mapping[TopicPartition, int]:
    async with Client(addresses.client_of(cluster)) as client:
        names = topics_on(spec, cluster)
        seen = await client.metadata(names)
        logs = [log for name in names for log in seen.partitions_of(name)]
        ends = await client.list_offsets(dict.fromkeys(logs, LATEST))
    return {log: ends[log].offset for log in logs}
