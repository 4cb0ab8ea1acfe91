"""Removing what a run left on clusters: exactly what its manifest lists, nothing else.

Rules:
- Only topics by the names in the manifest, and of those only the ones with the id that the run
  was told when it made them; a topic without a known id is the run's if it has its name.
- Groups are deleted only when they have no members.
- What is gone already is no error; a run that still goes on is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import KafkaError
from shoal.experiment.manifest import Created, Manifest

_GONE: Final = frozenset({Code.GROUP_ID_NOT_FOUND})


@dataclass(slots=True)
class Cleaned:
    """What was done on one cluster."""

    topics: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # and why


async def clean(
    run_dir: Path, properties: Mapping[str, Mapping[str, str]], *, dry_run: bool
) -> dict[str, Cleaned]:
    """Deletes what the run made, by cluster; `properties` add passwords and the like."""
    manifest = Manifest.read(run_dir)
    done = {}
    for role, created in manifest.clusters.items():
        async with Client({**created.client, **properties.get(role, {})}) as client:
            done[role] = await _cleaned(client, created, dry_run=dry_run)
    return done


async def _cleaned(client: Client, created: Created, *, dry_run: bool) -> Cleaned:
    done = Cleaned()
    seen = await client.metadata(list(created.topics)) if created.topics else None
    for name, topic_id in created.topics.items():
        topic = None if seen is None else seen.topics.get(name)
        if topic is None or not topic.partitions:
            continue
        if topic_id and topic.topic_id and str(topic.topic_id) != topic_id:
            done.left.append(f"topic {name}: somebody made it again, it is not the run's")
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
            if error.code not in _GONE:
                done.left.append(f"group {group}: {error}")
    return done
