"""Deletes what a run left on clusters: exactly what its manifest lists, nothing else.

Rules:
- A topic is deleted only if its name is in the manifest and its id is the one that the run got
  when it created the topic. If the manifest has no id, the name is enough.
- Groups are deleted only if they have no members.
- What is already deleted is no error. A run that is still running is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import KafkaError
from shoal.experiment.manifest import CreatedResources, Manifest

_ALREADY_DELETED: Final = frozenset({Code.GROUP_ID_NOT_FOUND})


@dataclass(slots=True)
class CleanResult:
    """What was deleted on one cluster, and what was not."""

    topics: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # each with the reason


async def clean(
    run_dir: Path, properties: Mapping[str, Mapping[str, str]], *, dry_run: bool
) -> dict[str, CleanResult]:
    """Delete what the run created, by cluster; `properties` add passwords and the like."""
    manifest = Manifest.read(run_dir)
    done = {}
    for role, created in manifest.clusters.items():
        async with Client({**created.client, **properties.get(role, {})}) as client:
            done[role] = await _clean_cluster(client, created, dry_run=dry_run)
    return done


async def _clean_cluster(
    client: Client, created: CreatedResources, *, dry_run: bool
) -> CleanResult:
    done = CleanResult()
    seen = await client.metadata(list(created.topics)) if created.topics else None
    for name, topic_id in created.topics.items():
        topic = None if seen is None else seen.topics.get(name)
        if topic is None or not topic.partitions:
            continue
        if topic_id and topic.topic_id and str(topic.topic_id) != topic_id:
            done.skipped.append(
                f"topic {name}: it was created again after the run (another topic id)"
            )
            continue
        done.topics.append(name)
    if not dry_run and done.topics:
        await client.admin.delete_topics(done.topics)
    for group in created.groups:
        if dry_run:
            done.groups.append(group)
            continue
        try:
            await client.admin.delete_group(group)
            done.groups.append(group)
        except KafkaError as error:
            if error.code not in _ALREADY_DELETED:
                done.skipped.append(f"group {group}: {error}")
    return done
